use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;

use wasmtime::{Config, Engine, InstancePre, Linker, Module, OptLevel};

use super::calls;
use super::vm::Face;

/// A compiled module, linked against this host's calls.
pub(crate) struct Code {
    pub(crate) engine: Engine,
    pub(crate) module: InstancePre<Rc<Face>>,
}

impl Code {
    /// What is shipped: `$SOFTCLOSE_WASM` or `dist/softclose.wasm`.
    pub(crate) fn shipped() -> &'static Self {
        static CODE: OnceLock<Code> = OnceLock::new();
        CODE.get_or_init(|| Self::read("SOFTCLOSE_WASM", "softclose.wasm"))
    }

    /// The same with traps on demand: `$SOFTCLOSE_WASM_PLANTED` or `dist/softclose-planted.wasm`.
    pub(crate) fn planted() -> &'static Self {
        static CODE: OnceLock<Code> = OnceLock::new();
        CODE.get_or_init(|| Self::read("SOFTCLOSE_WASM_PLANTED", "softclose-planted.wasm"))
    }

    fn read(variable: &str, file: &str) -> Self {
        let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(file);
        let path = std::env::var_os(variable).map_or_else(built, PathBuf::from);
        assert!(path.exists(), "{} is missing: run `just build-filter`, or set {variable}", path.display());
        let mut config = Config::new();
        // Compiling costs more than these tests run.
        config.cranelift_opt_level(OptLevel::None);
        let engine = Engine::new(&config).unwrap();
        let module = Module::from_file(&engine, &path).unwrap();
        let mut linker = Linker::new(&engine);
        calls::offer(&mut linker).unwrap();
        linker.define_unknown_imports_as_traps(&module).unwrap();
        let module = linker.instantiate_pre(&module).unwrap();
        Self { engine, module }
    }
}
