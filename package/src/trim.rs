//! Takes out of the module what no host ever calls.
//!
//! The SDK exports a callback for every event that a host knows, and a host calls whatever is exported: for each request a
//! dozen calls into the VM that do nothing. An absent callback costs nothing and means consent (proxy-wasm-cpp-host,
//! `context.cc`): a stream goes on, a start succeeds.
//!
//! Where the module has an entry point of its own beside the SDK's (`softclose_on_..`), that gets the ABI's name.
//!
//! What cannot be left out: panics' messages, since a trap must say where it came from.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use walrus::{
    ElementItems, Export, ExportId, ExportItem, FunctionBuilder, FunctionId, Module, ModuleConfig, TypeId, passes,
};

use crate::names::{self, Names, readable};

/// The module's own entry points begin like this where the ABI's begin with `proxy_on_`.
const OWN: &str = "softclose_on_";

/// Every export that a host needs, and why. `proxy_on_vm_start`, `proxy_on_context_create` and `proxy_on_log` are absent:
/// softclose begins at `proxy_on_configure`, a stream at its headers, and a request has ended when its context is deleted.
const EXPORTS: [&str; 9] = [
    // The host reads and writes requests and answers here.
    "memory",
    // The module's constructors, then its entry point: sets the panic hook and the root context's maker.
    "_initialize",
    // How a host knows which ABI this is; never called.
    "proxy_abi_version_0_2_1",
    // Where the host puts what a hostcall returns.
    "proxy_on_memory_allocate",
    // Role and plan.
    "proxy_on_configure",
    // Deadlines, the settling of zero, waits' timeouts.
    "proxy_on_tick",
    // The bell.
    "proxy_on_queue_ready",
    // +1, probes and commands.
    "proxy_on_request_headers",
    // -1: the stream's context is dropped; a root context that is replaced gives its slot back.
    "proxy_on_delete",
];

/// The module without what no host calls.
///
/// # Errors
/// If the bytes are no valid module, or a needed export is missing.
pub(crate) fn trim(wasm: &[u8], keep_all: bool, names: Names) -> Result<Vec<u8>> {
    let mut config = ModuleConfig::new();
    // Names of compilers and tools: nobody reads them, and they would change the bytes with each tool's version.
    config.generate_producers_section(false);
    let mut module = config.parse(wasm)?;
    for name in EXPORTS {
        ensure!(module.exports.iter().any(|export| export.name == name), "the export {name} is missing");
    }
    let own = take_over(&mut module);
    let unneeded: Vec<_> = module
        .exports
        .iter()
        .filter(|export| !EXPORTS.contains(&export.name.as_str()) && !own.contains(&export.name))
        .map(|export| (export.id(), export.name.clone()))
        .collect();
    for (export, name) in unneeded {
        if keep_all && name.starts_with("proxy_on_") {
            hollow_out(&mut module, export);
        } else {
            module.exports.delete(export);
        }
    }
    retire_accessors(&mut module)?;
    passes::gc::run(&mut module);
    names::rewrite(&mut module, names);
    let features: Vec<_> = module.customs.iter().map(|(id, _section)| id).collect();
    for section in features {
        module.customs.delete(section);
    }
    Ok(module.emit_wasm())
}

/// Gives the module's own entry points the ABI's names, in place of the SDK's; returns those names.
fn take_over(module: &mut Module) -> Vec<String> {
    let own: Vec<(ExportId, String)> = module
        .exports
        .iter()
        .filter_map(|export| Some((export.id(), format!("proxy_on_{}", export.name.strip_prefix(OWN)?))))
        .collect();
    for (export, name) in &own {
        let taken = module.exports.iter().find(|other| other.name == *name).map(Export::id);
        if let Some(taken) = taken {
            module.exports.delete(taken);
        }
        module.exports.get_mut(*export).name.clone_from(name);
    }
    own.into_iter().map(|(_, name)| name).collect()
}

/// Puts a function that does nothing but consent in an export's place: what the call alone costs.
fn hollow_out(module: &mut Module, export: ExportId) {
    let export = module.exports.get(export);
    let (id, name, ExportItem::Function(function)) = (export.id(), export.name.clone(), export.item) else { return };
    let (params, results) = module.types.params_results(module.funcs.get(function).ty());
    let (params, results) = (params.to_vec(), results.to_vec());
    let arguments = params.iter().map(|param| module.locals.add(*param)).collect();
    let mut builder = FunctionBuilder::new(&mut module.types, &params, &results);
    if !results.is_empty() {
        // "The context may go", "the VM may start"; of a stream's callbacks zero says that it goes on.
        builder.func_body().i32_const(i32::from(name == "proxy_on_done" || name == "proxy_on_vm_start"));
    }
    module.exports.get_mut(id).item = ExportItem::Function(builder.finish(arguments, &mut module.funcs));
}

/// Takes the SDK's unused accessors out of its virtual tables.
///
/// Each context's virtual table names some eighty methods that read bodies, send gRPC, set properties, and so on. Only
/// the context itself could call them, and ours use hostcalls of their own; but being named in a table they keep
/// themselves and all that they use. What the SDK's dispatcher does call through the table are the callbacks
/// (`on_..`, `create_..`, `get_type`): these stay. A direct call is not touched by this, only the table is; a call
/// through the table would trap in a function that says so.
fn retire_accessors(module: &mut Module) -> Result<()> {
    let retired: HashMap<FunctionId, TypeId> = module
        .funcs
        .iter()
        .filter(|function| function.name.as_deref().is_some_and(|symbol| is_accessor(&readable(symbol))))
        .map(|function| (function.id(), function.ty()))
        .collect();
    let mut traps: HashMap<TypeId, FunctionId> = HashMap::new();
    let elements: Vec<_> = module.elements.iter().map(walrus::Element::id).collect();
    for element in elements {
        let ElementItems::Functions(entries) = &module.elements.get(element).items else {
            continue;
        };
        let mut entries = entries.clone();
        for entry in &mut entries {
            if let Some(ty) = retired.get(entry) {
                let trap = match traps.get(ty) {
                    Some(trap) => *trap,
                    None => trap(module, *ty),
                };
                traps.insert(*ty, trap);
                *entry = trap;
            }
        }
        module.elements.get_mut(element).items = ElementItems::Functions(entries);
    }
    Ok(())
}

/// Whether a function is a method of the SDK's traits that only a context itself would call.
fn is_accessor(name: &str) -> bool {
    const CALLBACKS: [&str; 3] = ["on_", "create_", "get_type"];
    // Both as `proxy_wasm::traits::Context::f` and as `<X as proxy_wasm::traits::Context>::f`.
    let Some((_, method)) = name.rsplit_once("::").filter(|(owner, _)| owner.contains("proxy_wasm::traits::")) else {
        return false;
    };
    !CALLBACKS.iter().any(|callback| method.starts_with(callback))
}

fn trap(module: &mut Module, ty: TypeId) -> FunctionId {
    let (params, results) = module.types.params_results(ty);
    let (params, results) = (params.to_vec(), results.to_vec());
    let arguments = params.iter().map(|param| module.locals.add(*param)).collect();
    let mut builder = FunctionBuilder::new(&mut module.types, &params, &results);
    builder.name("softclose_retired_accessor".to_owned()).func_body().unreachable();
    builder.finish(arguments, &mut module.funcs)
}

#[cfg(test)]
mod tests;
