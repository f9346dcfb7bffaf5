use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::state::Owner;
use super::vm::{Key, Vm};
use super::{Process, Role};

/// How long after its last load a failed VM of the answering role stays down; Envoy's back-off starts at a second, which
/// jitter may lengthen.
pub(crate) const RELOAD_AFTER: Duration = Duration::from_secs(1);

/// What a test lets a thread do when its turn comes.
type Script = Box<dyn FnOnce(&Process)>;

/// One thread of the process with its event loop.
#[derive(Default)]
pub(crate) struct Thread {
    /// A callback runs.
    pub(crate) executing: Cell<bool>,
    /// It gets no turn.
    frozen: Cell<bool>,
    /// VMs by key: what posts are delivered to. A VM that fails is taken out.
    local: RefCell<BTreeMap<Key, Rc<Vm>>>,
    /// What new streams are given; a VM that failed stays until it is loaded anew.
    handles: RefCell<BTreeMap<Role, Handle>>,
    posts: RefCell<VecDeque<(Owner, u32)>>,
    script: RefCell<VecDeque<Script>>,
    /// Contexts whose deletion waits for the end of the event.
    ended: RefCell<Vec<(Rc<Vm>, u32)>>,
}

struct Handle {
    vm: Rc<Vm>,
    loaded_nanos: u64,
}

impl Thread {
    pub(crate) fn forget(&self, vm: &Vm) {
        self.local.borrow_mut().retain(|_, local| local.face.number != vm.face.number);
    }

    pub(crate) fn end_later(&self, vm: Rc<Vm>, context: u32) {
        self.ended.borrow_mut().push((vm, context));
    }

    fn idle(&self) -> bool {
        !self.executing.get() && !self.frozen.get()
    }

    fn sweep(&self) {
        for (vm, context) in self.ended.take() {
            vm.face.contexts.borrow_mut().remove(&context);
        }
        let retired: Vec<Rc<Vm>> = self.local.borrow().values().filter(|vm| vm.deserted()).cloned().collect();
        for vm in retired {
            vm.shut_down();
            self.forget(&vm);
        }
    }
}

/// Something that a thread's event loop can do next.
#[derive(Clone, Copy)]
enum Event {
    Post,
    Script,
    Tick(usize, u32),
}

impl Process {
    pub(crate) fn plugins(&self, role: Role) -> Vec<&[u8]> {
        let setup = &self.0.setup;
        match role {
            Role::Count => vec![setup.count.as_slice(); setup.counts],
            Role::Gate => setup.gates.iter().map(Vec::as_slice).collect(),
        }
    }

    /// Root contexts of `role` that have a tick armed.
    pub(crate) fn ticking(&self, role: Role) -> usize {
        let of_role = |number: &usize| {
            let mut handles =
                self.0.threads.iter().filter_map(|thread| Some(Rc::clone(&thread.handles.borrow().get(&role)?.vm)));
            handles.any(|vm| vm.face.number == *number)
        };
        self.0.timers.borrow().keys().filter(|(vm, _)| of_role(vm)).count()
    }

    /// Loads the VM of `role` on `thread` in place of what is there.
    pub(crate) fn replace_vm(&self, thread: usize, role: Role) {
        let loaded_nanos = self.0.now_nanos.get();
        let vm = Vm::load(self, role, thread);
        let place = &self.0.threads[thread];
        if let Some(vm) = vm {
            place.local.borrow_mut().insert(vm.face.key, Rc::clone(&vm));
            place.handles.borrow_mut().insert(role, Handle { vm, loaded_nanos });
        } else if let Some(handle) = place.handles.borrow_mut().get_mut(&role) {
            handle.loaded_nanos = loaded_nanos;
        }
    }

    /// A push of another VM configuration or other code for `role`: a canary, a new VM on every thread for new streams. An old
    /// one lives on until its last stream ends.
    pub(crate) fn push(&self, role: Role) {
        self.0.pushes.set(self.0.pushes.get() + 1);
        Vm::load(self, role, super::MAIN).expect("the canary VM refused its configuration").kill();
        for thread in 0..self.0.threads.len() {
            let old = self.vm(thread, role);
            self.replace_vm(thread, role);
            if let Some(old) = old {
                old.retire();
                self.0.threads[thread].sweep();
            }
        }
    }

    pub(crate) fn vm(&self, thread: usize, role: Role) -> Option<Rc<Vm>> {
        self.0.threads[thread].handles.borrow().get(&role).map(|handle| Rc::clone(&handle.vm))
    }

    /// Whether the VM of `role` on `thread` has trapped.
    pub(crate) fn failed(&self, thread: usize, role: Role) -> bool {
        self.vm(thread, role).is_none_or(|vm| vm.failed())
    }

    /// The VM for a new stream. A failed one of the answering role is loaded anew, if its last load was long enough ago.
    pub(crate) fn vm_for_stream(&self, thread: usize, role: Role) -> Option<Rc<Vm>> {
        self.0.threads[thread].sweep();
        let vm = self.vm(thread, role)?;
        if vm.failed() && role == Role::Gate {
            let loaded = self.0.threads[thread].handles.borrow()[&role].loaded_nanos;
            if u128::from(self.0.now_nanos.get() - loaded) >= RELOAD_AFTER.as_nanos() {
                self.replace_vm(thread, role);
            }
        }
        self.vm(thread, role).filter(|vm| !vm.failed())
    }

    pub(crate) fn post(&self, owner: Owner, token: u32) {
        self.0.threads[owner.thread].posts.borrow_mut().push_back((owner, token));
    }

    /// Lets `thread` do this when its turn comes, after what it was given before.
    pub(crate) fn script(&self, thread: usize, event: impl FnOnce(&Self) + 'static) {
        self.0.threads[thread].script.borrow_mut().push_back(Box::new(event));
    }

    /// Runs one event of one thread that is not in the middle of a callback, as the seed decides; false if there is none.
    pub(crate) fn turn(&self) -> bool {
        let mut choices = Vec::new();
        for (number, thread) in self.0.threads.iter().enumerate().filter(|(_, thread)| thread.idle()) {
            choices.extend((!thread.posts.borrow().is_empty()).then_some((number, Event::Post)));
            choices.extend((!thread.script.borrow().is_empty()).then_some((number, Event::Script)));
        }
        for ((vm, context), timer) in self.0.timers.borrow().iter() {
            let due = timer.due_nanos <= self.0.now_nanos.get() && self.0.threads[timer.thread].idle();
            choices.extend(due.then_some((timer.thread, Event::Tick(*vm, *context))));
        }
        if choices.is_empty() {
            return false;
        }
        let choice = usize::try_from(self.random(choices.len() as u64)).unwrap();
        let (thread, event) = choices[choice];
        self.run(thread, event);
        true
    }

    /// Runs events until there is none; the clock stands still.
    pub(crate) fn settle(&self) {
        while self.turn() {}
    }

    /// Moves the clock; everything runs when it is due.
    pub(crate) fn advance(&self, by: Duration) {
        let target = self.0.now_nanos.get() + u64::try_from(by.as_nanos()).unwrap();
        loop {
            self.settle();
            let timers = self.0.timers.borrow();
            let next = timers.values().filter(|timer| self.0.threads[timer.thread].idle()).map(|timer| timer.due_nanos);
            let next = next.min();
            drop(timers);
            match next.filter(|due| *due <= target) {
                Some(due) => self.move_clock(due),
                None => break,
            }
        }
        self.move_clock(target);
    }

    /// A thread that is busy elsewhere: it hears no bell and has no tick until it is let go.
    pub(crate) fn freeze(&self, thread: usize, frozen: bool) {
        self.0.threads[thread].frozen.set(frozen);
    }

    /// Timers that are armed.
    pub(crate) fn armed(&self) -> usize {
        self.0.timers.borrow().len()
    }

    fn move_clock(&self, to: u64) {
        // An advance inside a callback may have gone further.
        let by = to.saturating_sub(self.0.now_nanos.get());
        self.0.now_nanos.set(self.0.now_nanos.get() + by);
        self.0.wall_nanos.set(self.0.wall_nanos.get() + by);
    }

    fn run(&self, thread: usize, event: Event) {
        let place = &self.0.threads[thread];
        place.sweep();
        match event {
            Event::Script => {
                let script = place.script.borrow_mut().pop_front().unwrap();
                script(self);
            }
            Event::Post => {
                let (owner, token) = place.posts.borrow_mut().pop_front().unwrap();
                // By key and number: the registering VM may be gone, and another may have this number.
                let vm = place.local.borrow().get(&owner.key).cloned();
                if let Some(vm) = vm.filter(|vm| vm.face.contexts.borrow().contains_key(&owner.context)) {
                    vm.call::<_, ()>(owner.context, "proxy_on_queue_ready", (owner.context, token));
                    self.send_replies(&vm);
                }
            }
            Event::Tick(number, context) => self.tick(thread, number, context),
        }
    }

    fn tick(&self, thread: usize, number: usize, context: u32) {
        let vm = self.0.threads[thread].local.borrow().values().find(|vm| vm.face.number == number).cloned();
        let Some(vm) = vm else {
            self.0.timers.borrow_mut().remove(&(number, context));
            return;
        };
        vm.call::<_, ()>(context, "proxy_on_tick", context);
        self.send_replies(&vm);
        // Enabled again after the callback, with the period that it left.
        if let Some(timer) = self.0.timers.borrow_mut().get_mut(&(number, context)) {
            timer.due_nanos = self.0.now_nanos.get() + timer.period_nanos;
        }
    }
}
