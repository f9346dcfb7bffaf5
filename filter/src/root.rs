use std::cell::RefCell;
use std::panic::PanicHookInfo;
use std::rc::Rc;

use proxy_wasm::traits::{Context, RootContext};
use softclose_fsm::Role;

use crate::config::Config;
use crate::host::{self, Level};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::worker::Worker;

thread_local! {
    /// The workers of this VM, one for each plugin configuration in use, the newest last.
    static WORKERS: RefCell<Vec<Rc<Worker>>> = const { RefCell::new(Vec::new()) };
}

/// The panic hook: says what happened, and does what is left to do before the host takes the VM away. Out of memory and out of
/// stack there is no panic, and this does not run: then the roll call finds out.
pub(crate) fn on_panic(panic: &PanicHookInfo<'_>) {
    // One line: the message has a line of its own.
    let message = panic.to_string().replace('\n', " ");
    host::log(Level::Critical, &format!("softclose: {message}"));
    // Any worker of this VM can: they share the ledger.
    if let Some(worker) = heir() {
        worker.last_will();
    }
}

fn heir() -> Option<Rc<Worker>> {
    WORKERS.with(|workers| workers.try_borrow().ok()?.last().cloned())
}

/// Who works for the stream under way; none before a configuration was taken.
///
/// The host does not say which root context a stream belongs to. Several are there while a configuration is replaced by
/// another one of the same plugin, and the newest is as good then; other plugins may share the VM, and have other names.
pub(crate) fn worker_of_stream() -> Option<Rc<Worker>> {
    WORKERS.with_borrow(|workers| match workers.as_slice() {
        [only] => Some(Rc::clone(only)),
        several => {
            let name = host::plugin_name();
            let namesake = several.iter().rfind(|worker| worker.plugin == name);
            namesake.or(several.last()).cloned()
        }
    })
}

/// A root context: one plugin configuration on one worker.
pub(crate) struct Root {
    context: u32,
    /// None until configured.
    worker: Option<Rc<Worker>>,
}

impl Root {
    pub(crate) fn new(context: u32) -> Self {
        Self { context, worker: None }
    }

    /// Whether the configuration is taken. A refusal is a 500 to all traffic of a listener that has no earlier configuration,
    /// so the counting role never refuses.
    fn configure(&mut self) -> bool {
        let plugin = host::plugin_configuration().unwrap_or_default();
        let vm = host::vm_configuration().unwrap_or_default();
        let config = match Config::parse(&plugin, &vm) {
            Ok(config) => config,
            Err(error) => {
                host::log(Level::Error, &format!("softclose: configuration refused: {error}"));
                return false;
            }
        };
        let role = config.role();
        match Metrics::define().and_then(|metrics| Ok((metrics, Ledger::choose()?))) {
            Ok((metrics, ledger)) => {
                let worker = Rc::new(Worker::new(self.context, host::plugin_name(), config, metrics, ledger));
                worker.begin();
                worker.enrol();
                WORKERS.with_borrow_mut(|workers| workers.push(Rc::clone(&worker)));
                if let Some(old) = self.worker.replace(worker) {
                    retire(&old);
                }
                true
            }
            Err(status) => {
                host::log(Level::Error, &format!("softclose: metrics cannot be defined: {status:?}"));
                role == Role::Count
            }
        }
    }
}

impl Context for Root {}

/// In `Drop`, not in `on_done`: a callback that is exported is called for each request as well.
impl Drop for Root {
    fn drop(&mut self) {
        if let Some(worker) = &self.worker {
            retire(worker);
        }
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        self.configure()
    }

    fn on_tick(&mut self) {
        if let Some(worker) = &self.worker {
            worker.heed();
        }
    }

    fn on_queue_ready(&mut self, token: u32) {
        // A dead VM's bell can be delivered here (the host finds its successor by key); it is not ours to answer.
        if let Some(worker) = self.worker.as_ref().filter(|worker| worker.is_rung_by(token)) {
            worker.heed();
        }
    }
}

/// No more streams come to `worker`.
fn retire(worker: &Rc<Worker>) {
    WORKERS.with_borrow_mut(|workers| workers.retain(|other| !Rc::ptr_eq(other, worker)));
    worker.leave();
}
