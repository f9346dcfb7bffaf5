//! The name section: what Envoy prints when a VM traps. It is never loaded into V8, only read by the host's own parser.

use clap::ValueEnum;
use rustc_demangle::demangle;
use walrus::Module;

/// Whose functions keep a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Names {
    /// Every function
    All,
    /// Those that a trap's trace is read for: softclose's and the SDK's
    Own,
    /// No function
    None,
}

/// How the names begin whose frames say where a trap comes from: the SDK's and ours, and the panic itself. Between them
/// stand serde_json, the allocator and formatting, as numbers.
const OWN: [&str; 5] = ["softclose_", "proxy_", "_initialize", "std::panicking", "core::panicking"];

/// Gives functions readable names, demangled and without the hash, or takes them away.
pub(crate) fn rewrite(module: &mut Module, names: Names) {
    for function in module.funcs.iter_mut() {
        function.name = function.name.as_deref().map(readable).filter(|name| match names {
            Names::All => true,
            Names::Own => {
                // `<softclose_filter::stream::Counted as ...>` and `<&softclose_filter::worker::Worker as ...>` too.
                let name = name.trim_start_matches(['<', '&']);
                OWN.iter().any(|own| name.starts_with(own))
            }
            Names::None => false,
        });
    }
}

/// `softclose_filter::worker::Worker::enter` instead of the symbol that the compiler made of it.
pub(crate) fn readable(symbol: &str) -> String {
    format!("{:#}", demangle(symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_either_mangling_become_paths() {
        let legacy = "_ZN16softclose_filter6worker6Worker4heed17hb250b0cb2fbefb18E";
        assert_eq!(readable(legacy), "softclose_filter::worker::Worker::heed");
        assert_eq!(readable("_RNvNtCset5xJoy1xWQ_3std9panicking15panic_with_hook"), "std::panicking::panic_with_hook");
        assert_eq!(readable("proxy_on_tick"), "proxy_on_tick");
    }
}
