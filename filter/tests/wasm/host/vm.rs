use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use wasmtime::{Instance, Memory, Store, StoreLimits, StoreLimitsBuilder, TypedFunc, WasmParams, WasmResults};

use super::streams::{Reply, StreamId};
use super::{Inner, Line, Process, Role};

/// The level at which Envoy logs a trap.
const CRITICAL: u32 = 5;

/// One VM: an instance of the module on one thread.
pub(crate) struct Vm {
    pub(crate) face: Rc<Face>,
    running: RefCell<Running>,
    /// A trap: no callback is made any more.
    failed: Cell<bool>,
    /// Another VM takes the new streams.
    retired: Cell<bool>,
    roots: RefCell<Vec<u32>>,
}

/// What Envoy makes of a VM's code and configuration: VMs with the same key are one to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    role: Role,
    push: u32,
}

struct Running {
    store: Store<Rc<Face>>,
    instance: Instance,
}

/// What a VM's hostcalls see of it.
pub(crate) struct Face {
    process: Weak<Inner>,
    /// Which of all VMs ever loaded.
    pub(crate) number: usize,
    pub(crate) thread: usize,
    pub(crate) role: Role,
    pub(crate) key: Key,
    pub(crate) contexts: RefCell<BTreeMap<u32, Context>>,
    next_context: Cell<u32>,
    /// The context whose callback runs.
    current: Cell<u32>,
    /// The context that the module speaks for instead; zero: none.
    pub(crate) effective: Cell<u32>,
    /// Answers to send once the callback has returned.
    pub(crate) replies: RefCell<Vec<(StreamId, Reply)>>,
    /// The callback has sent an answer, so whatever it returns the stream stops here.
    pub(crate) stopped: Cell<bool>,
    /// Gauges and counters by this VM's own numbers; a null gauge has no name.
    pub(crate) metrics: RefCell<BTreeMap<u32, Option<String>>>,
    pub(crate) memory: Cell<Option<Memory>>,
    pub(crate) allocate: RefCell<Option<TypedFunc<u32, u32>>>,
    limits: RefCell<StoreLimits>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) root: u32,
    pub(crate) stream: Option<StreamId>,
    /// Which plugin configuration of its role.
    pub(crate) plugin: usize,
}

/// What became of a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called<R> {
    Returned(R),
    /// The module does not export it.
    Absent,
    /// It trapped, or the VM had failed before.
    Failed,
}

impl Face {
    pub(crate) fn process(&self) -> Process {
        Process(self.process.upgrade().expect("a VM outlived its process"))
    }

    pub(crate) fn add_context(&self, context: impl FnOnce(u32) -> Context) -> u32 {
        let number = self.next_context.replace(self.next_context.get() + 1);
        self.contexts.borrow_mut().insert(number, context(number));
        number
    }

    /// The context that hostcalls speak of.
    pub(crate) fn spoken_for(&self) -> Option<Context> {
        let contexts = self.contexts.borrow();
        contexts.get(&self.effective.get()).or_else(|| contexts.get(&self.current.get())).copied()
    }
}

impl Vm {
    /// Loads, starts and configures a VM of `role` on `thread`; none if it traps or refuses.
    pub(crate) fn load(process: &Process, role: Role, thread: usize) -> Option<Rc<Self>> {
        // Plenty for 1,000 waits and a full registry; an allocation without end must fail soon.
        const MEMORY_MAX: usize = 64 << 20;
        let setup = &process.0.setup;
        let face = Rc::new(Face {
            process: Rc::downgrade(&process.0),
            number: process.0.vms.replace(process.0.vms.get() + 1),
            thread,
            role,
            key: Key { role, push: process.0.pushes.get() },
            contexts: RefCell::default(),
            next_context: Cell::new(1),
            current: Cell::new(0),
            effective: Cell::new(0),
            replies: RefCell::default(),
            stopped: Cell::new(false),
            metrics: RefCell::default(),
            memory: Cell::new(None),
            allocate: RefCell::default(),
            limits: RefCell::new(StoreLimitsBuilder::new().memory_size(MEMORY_MAX).build()),
        });
        let mut store = Store::new(&setup.code.engine, Rc::clone(&face));
        store.limiter(|face| {
            let limits: *mut StoreLimits = face.limits.as_ptr();
            // SAFETY: nobody else touches the cell, and the engine asks for one limiter at a time.
            unsafe { &mut *limits }
        });
        let instance = setup.code.module.instantiate(&mut store).unwrap();
        face.memory.set(instance.get_memory(&mut store, "memory"));
        let allocate = instance.get_typed_func(&mut store, "proxy_on_memory_allocate").unwrap();
        *face.allocate.borrow_mut() = Some(allocate);
        let running = RefCell::new(Running { store, instance });
        let vm = Rc::new(Self {
            face,
            running,
            failed: Cell::new(false),
            retired: Cell::new(false),
            roots: RefCell::default(),
        });
        vm.call::<(), ()>(0, "_initialize", ());
        for (plugin, configuration) in process.plugins(role).iter().enumerate() {
            let root = vm.face.add_context(|number| Context { root: number, stream: None, plugin });
            vm.roots.borrow_mut().push(root);
            let size = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
            vm.call::<_, ()>(root, "proxy_on_context_create", (root, 0_u32));
            process.send_replies(&vm);
            let started = vm.call::<_, u32>(root, "proxy_on_vm_start", (root, size(role.vm_configuration())));
            process.send_replies(&vm);
            let configured = vm.call::<_, u32>(root, "proxy_on_configure", (root, size(configuration)));
            process.send_replies(&vm);
            if vm.failed() || started == Called::Returned(0) || configured == Called::Returned(0) {
                return None;
            }
        }
        Some(vm)
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed.get()
    }

    /// The end of the canary: no callback says so.
    pub(crate) fn kill(&self) {
        self.failed.set(true);
        self.face.process().0.timers.borrow_mut().retain(|(vm, _), _| *vm != self.face.number);
    }

    pub(crate) fn retire(&self) {
        self.retired.set(true);
    }

    /// Retired, and its last stream has ended.
    pub(crate) fn deserted(&self) -> bool {
        self.retired.get() && self.face.contexts.borrow().values().all(|context| context.stream.is_none())
    }

    /// The end of a retired VM: its root contexts are told.
    pub(crate) fn shut_down(self: &Rc<Self>) {
        let process = self.face.process();
        for root in self.roots.take() {
            self.call::<_, u32>(root, "proxy_on_done", root);
            process.send_replies(self);
            self.call::<_, ()>(root, "proxy_on_delete", root);
            process.send_replies(self);
        }
        self.kill();
    }

    /// The root context of a plugin configuration; the last where there are fewer.
    pub(crate) fn root(&self, plugin: usize) -> (usize, u32) {
        let roots = self.roots.borrow();
        let plugin = plugin.min(roots.len() - 1);
        (plugin, roots[plugin])
    }

    /// Makes one callback, if the module exports it.
    pub(crate) fn call<P: WasmParams, R: WasmResults>(&self, context: u32, name: &str, arguments: P) -> Called<R> {
        if self.failed() {
            return Called::Failed;
        }
        let process = self.face.process();
        let thread = &process.0.threads[self.face.thread];
        let nested = thread.executing.replace(true);
        assert!(!nested, "thread {} was given {name} in the middle of another callback", self.face.thread);
        self.face.current.set(context);
        self.face.effective.set(0);
        let mut running = self.running.borrow_mut();
        let Running { store, instance } = &mut *running;
        let called = match instance.get_func(&mut *store, name) {
            None => Called::Absent,
            Some(function) => {
                let function: TypedFunc<P, R> = function.typed(&mut *store).unwrap();
                match function.call(&mut *store, arguments) {
                    Ok(result) => Called::Returned(result),
                    Err(trap) => {
                        self.failed.set(true);
                        let Face { thread, role, .. } = &*self.face;
                        let text = format!("{name} trapped on thread {thread}, {role:?}: {trap:?}");
                        process.0.state.borrow_mut().lines.push(Line { level: CRITICAL, text });
                        Called::Failed
                    }
                }
            }
        };
        thread.executing.set(false);
        if self.failed() {
            thread.forget(self);
        }
        called
    }
}
