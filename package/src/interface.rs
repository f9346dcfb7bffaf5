//! What a module asks of its host and offers to it.

use std::fmt::Write;

use anyhow::Result;
use walrus::{ExportItem, ImportKind, Module, TypeId};

/// All imports, then all exports, each sorted and with its type.
pub(crate) fn list(wasm: &[u8]) -> Result<String> {
    let module = Module::from_buffer(wasm)?;
    let mut imports: Vec<String> = module
        .imports
        .iter()
        .map(|import| {
            let kind = match &import.kind {
                ImportKind::Function(function) => signature(&module, module.funcs.get(*function).ty()),
                ImportKind::Table(_) => "table".to_owned(),
                ImportKind::Memory(_) => "memory".to_owned(),
                ImportKind::Global(_) => "global".to_owned(),
                ImportKind::Tag(_) => "tag".to_owned(),
            };
            format!("import {}.{} {kind}", import.module, import.name)
        })
        .collect();
    let mut exports: Vec<String> = module
        .exports
        .iter()
        .map(|export| {
            let kind = match &export.item {
                ExportItem::Function(function) => signature(&module, module.funcs.get(*function).ty()),
                ExportItem::Table(_) => "table".to_owned(),
                ExportItem::Memory(_) => "memory".to_owned(),
                ExportItem::Global(_) => "global".to_owned(),
                ExportItem::Tag(_) => "tag".to_owned(),
            };
            format!("export {} {kind}", export.name)
        })
        .collect();
    imports.sort();
    exports.sort();
    let mut text = String::new();
    for line in imports.iter().chain(&exports) {
        writeln!(text, "{line}")?;
    }
    Ok(text)
}

/// `(i32, i64) -> i32`.
fn signature(module: &Module, ty: TypeId) -> String {
    let (params, results) = module.types.params_results(ty);
    let joined = |types: &[walrus::ValType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match results {
        [] => format!("({})", joined(params)),
        results => format!("({}) -> {}", joined(params), joined(results)),
    }
}
