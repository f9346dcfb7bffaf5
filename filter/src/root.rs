use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;
use softclose_fsm::Role;

use crate::config::Config;
use crate::host::{self, Level};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::stream::{Asked, Counted};
use crate::worker::Worker;

thread_local! {
    /// Who carries out this VM's last will: any of its workers, they share the ledger.
    static HEIR: Cell<Option<Rc<Worker>>> = const { Cell::new(None) };
}

/// The panic hook: says what happened, and does what is left to do before the host takes the VM away. Out of memory and out of
/// stack there is no panic, and this does not run: then the roll call finds out.
pub(crate) fn on_panic(panic: &PanicHookInfo<'_>) {
    // One line: the message has a line of its own.
    let message = panic.to_string().replace('\n', " ");
    host::log(Level::Critical, &format!("softclose: {message}"));
    if let Some(worker) = HEIR.take() {
        worker.last_will();
    }
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
                let worker = Rc::new(Worker::new(self.context, config, metrics, ledger));
                worker.begin();
                worker.enrol();
                HEIR.set(Some(Rc::clone(&worker)));
                if let Some(old) = self.worker.replace(worker) {
                    old.leave();
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
            worker.leave();
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

    fn create_http_context(&self, context: u32) -> Option<Box<dyn HttpContext>> {
        match &self.worker {
            Some(worker) => Some(match worker.config.role() {
                Role::Count => Box::new(Counted::new(Rc::clone(worker))),
                Role::Gate => Box::new(Asked::new(Rc::clone(worker), context)),
            }),
            // The SDK panics on None, and a stream of an unconfigured root must only pass.
            None => Some(Box::new(Passing)),
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// A stream that nobody looks at.
struct Passing;

impl Context for Passing {}
impl HttpContext for Passing {}
