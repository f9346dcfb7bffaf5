//! A plugin configuration of arbitrary bytes. cargo-fuzz and the bounded run of the ordinary tests call the same.

use softclose_filter::Config;
use softclose_fsm::Role;

/// One byte for the VM's role, then the plugin's configuration.
pub(crate) fn config(bytes: &[u8]) {
    let Some((vm, plugin)) = bytes.split_first() else { return };
    let vm: &[u8] = [&b"gate"[..], b"count", b" gate\n", b""][usize::from(vm % 4)];
    match Config::parse(plugin, vm) {
        Ok(Config::Gate(gate)) => {
            assert!(gate.plan.hold_min <= gate.plan.hold_max, "{gate:?}");
            assert_ne!(gate.paths.balancer, gate.paths.readiness);
            assert!([&gate.paths.balancer, &gate.paths.readiness].iter().all(|path| path.starts_with('/')));
        }
        Ok(count @ Config::Count { .. }) => assert_eq!(count.role(), Role::Count),
        Err(error) => assert!(error.to_string().len() <= 4_096, "{error}"),
    }
}
