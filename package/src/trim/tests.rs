use walrus::{ConstExpr, ElementKind, ExportItem, RefType, ValType};

use super::*;
use crate::interface;

/// A module with everything that a host needs, one callback that nobody needs, and a virtual table of the SDK's.
fn linked() -> Vec<u8> {
    let mut module = Module::default();
    let memory = module.memories.add_local(false, false, 1, None, None);
    module.exports.add("memory", memory);
    for name in EXPORTS.iter().filter(|name| **name != "memory") {
        let function = function(&mut module, name, &[]);
        module.exports.add(name, function);
    }
    let host = module.types.add(&[], &[]);
    let (body, _import) = module.add_import_func("env", "proxy_get_body", host);
    let (log, _import) = module.add_import_func("env", "proxy_log", host);
    let unneeded = function(&mut module, "proxy_on_response_body", &[body]);
    module.exports.add("proxy_on_response_body", unneeded);

    let virtual_table = [
        function(&mut module, "proxy_wasm::traits::HttpContext::get_http_request_body", &[body]),
        function(&mut module, "_ZN10proxy_wasm6traits7Context7on_done17h0123456789abcdefE", &[log]),
        function(&mut module, "<softclose_filter::stream::Counted as core::ops::drop::Drop>::drop", &[]),
        function(&mut module, "serde_json::de::from_slice", &[]),
    ];
    let table = module.tables.add_local(false, 4, Some(4), RefType::FUNCREF);
    let kind = ElementKind::Active { table, offset: ConstExpr::Value(walrus::ir::Value::I32(0)) };
    let element = module.elements.add(kind, ElementItems::Functions(virtual_table.to_vec()));
    module.tables.get_mut(table).elem_segments.insert(element);
    // What indexes the table keeps it.
    let mut builder = FunctionBuilder::new(&mut module.types, &[], &[]);
    builder.name("proxy_on_tick".to_owned()).func_body().i32_const(0).call_indirect(host, table);
    let dispatcher = builder.finish(vec![], &mut module.funcs);
    module.exports.remove("proxy_on_tick").unwrap();
    module.exports.add("proxy_on_tick", dispatcher);
    module.producers.add_language("Rust", "of some version");
    module.emit_wasm()
}

fn function(module: &mut Module, name: &str, calls: &[FunctionId]) -> FunctionId {
    let mut builder = FunctionBuilder::new(&mut module.types, &[], &[]);
    for call in calls {
        builder.func_body().call(*call);
    }
    builder.name(name.to_owned());
    builder.finish(vec![], &mut module.funcs)
}

fn trimmed(names: Names) -> Module {
    Module::from_buffer(&trim(&linked(), false, names).unwrap()).unwrap()
}

fn function_names(module: &Module) -> Vec<&str> {
    module.funcs.iter().filter_map(|function| function.name.as_deref()).collect()
}

#[test]
fn what_no_host_needs_is_gone_with_all_that_it_used() {
    let text = interface::list(&trim(&linked(), false, Names::All).unwrap()).unwrap();
    assert!(!text.contains("proxy_on_response_body"), "{text}");
    assert!(!text.contains("proxy_get_body"), "{text}");
    for name in EXPORTS {
        assert!(text.contains(&format!("export {name} ")), "{name} is missing from\n{text}");
    }
}

#[test]
fn callbacks_stay_in_the_virtual_table_and_accessors_leave_it() {
    let module = trimmed(Names::All);
    let names = function_names(&module);
    assert!(!names.iter().any(|name| name.contains("get_http_request_body")), "{names:?}");
    assert!(names.contains(&"proxy_wasm::traits::Context::on_done"), "{names:?}");
    assert!(names.iter().any(|name| name.contains("Counted")), "{names:?}");
    let entries: Vec<usize> = module
        .elements
        .iter()
        .map(|element| match &element.items {
            ElementItems::Functions(entries) => entries.len(),
            ElementItems::Expressions(_, entries) => entries.len(),
        })
        .collect();
    // An index in a virtual table means the same entry as before.
    assert_eq!(entries, [4]);
}

#[test]
fn an_accessor_that_is_called_directly_is_still_called() {
    let mut module = Module::from_buffer(&linked()).unwrap();
    let accessor = module.funcs.by_name("proxy_wasm::traits::HttpContext::get_http_request_body").unwrap();
    let caller = function(&mut module, "softclose_filter::caller", &[accessor]);
    module.exports.remove("proxy_on_queue_ready").unwrap();
    module.exports.add("proxy_on_queue_ready", caller);
    let after = Module::from_buffer(&trim(&module.emit_wasm(), false, Names::All).unwrap()).unwrap();
    assert!(function_names(&after).iter().any(|name| name.contains("get_http_request_body")));
    assert!(after.imports.find("env", "proxy_get_body").is_some());
}

#[test]
fn with_all_exports_a_callback_that_nobody_needs_does_nothing() {
    let bytes = trim(&linked(), true, Names::All).unwrap();
    let module = Module::from_buffer(&bytes).unwrap();
    assert!(module.exports.iter().any(|export| export.name == "proxy_on_response_body"));
    assert!(module.imports.find("env", "proxy_get_body").is_none(), "what the callback used is still there");
    assert!(module.exports.iter().all(|export| !matches!(export.item, ExportItem::Global(_))));
    // Read as bytes: the parser adds itself to the producers of what it reads.
    assert!(!bytes.windows(9).any(|bytes| bytes == b"producers"));
}

#[test]
fn own_names_are_kept_and_others_are_not() {
    let module = trimmed(Names::Own);
    let names = function_names(&module);
    assert!(names.iter().any(|name| name.contains("softclose_filter")), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("serde_json")), "{names:?}");
    assert!(function_names(&trimmed(Names::None)).is_empty());
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let input = linked();
    assert_eq!(trim(&input, false, Names::Own).unwrap(), trim(&input, false, Names::Own).unwrap());
}

#[test]
fn a_module_that_lacks_a_needed_export_is_refused() {
    let mut module = Module::from_buffer(&linked()).unwrap();
    module.exports.remove("proxy_on_delete").unwrap();
    let error = trim(&module.emit_wasm(), false, Names::Own).unwrap_err();
    assert!(error.to_string().contains("proxy_on_delete"), "{error}");
}

#[test]
fn signatures_are_part_of_the_interface() {
    let mut module = Module::from_buffer(&linked()).unwrap();
    let ty = module.types.add(&[ValType::I32, ValType::I64], &[ValType::I32]);
    let (add, _import) = module.add_import_func("env", "proxy_increment_metric", ty);
    module.exports.add("kept", add);
    let text = interface::list(&module.emit_wasm()).unwrap();
    assert!(text.contains("import env.proxy_increment_metric (i32, i64) -> i32\n"), "{text}");
}

#[test]
fn the_modules_own_entry_point_has_the_abis_name() {
    let mut module = Module::from_buffer(&linked()).unwrap();
    let own = function(&mut module, "softclose_on_tick", &[]);
    module.exports.add("softclose_on_tick", own);
    let own = function(&mut module, "softclose_on_response_body", &[]);
    module.exports.add("softclose_on_response_body", own);
    let module = Module::from_buffer(&trim(&module.emit_wasm(), false, Names::All).unwrap()).unwrap();
    for name in ["tick", "response_body"] {
        let exported: Vec<_> = module.exports.iter().filter(|export| export.name.ends_with(name)).collect();
        let [export] = exported.as_slice() else { panic!("{} exports are named {name}", exported.len()) };
        assert_eq!(export.name, format!("proxy_on_{name}"));
        let ExportItem::Function(function) = export.item else { panic!("{name} is no function") };
        assert_eq!(module.funcs.get(function).name.as_deref(), Some(format!("softclose_on_{name}").as_str()));
    }
}
