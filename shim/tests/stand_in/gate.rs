use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use softclose_fsm::control::{Call, Rejection, STATE_HEADER};
use softclose_fsm::{
    DistrustReason, Effect, Handled, Host, Input, Loaded, Plan, Preset, Reading, Record, Reply as Said, RollCall,
    StateName, Status, Stored, handle,
};

use super::server::{Reply, Request, Server};

/// The control listener with a real gate behind it.
pub(crate) struct Gate {
    pub(crate) server: Server,
    shared: Arc<Shared>,
}

struct Shared {
    world: Mutex<World>,
    moved: Condvar,
    /// Answers to give instead of the gate's, next one last.
    scripted: Mutex<Vec<Reply>>,
}

/// One worker that is the whole process.
struct World {
    epoch: Instant,
    record: Record,
    active: u64,
    /// Requests let in since the first drain.
    admitted: u64,
    plan: Plan,
    /// Most tests have nobody who asks for health, and are about other things: then it is a gate that keeps no account of whom it
    /// told.
    says_who_was_told: bool,
}

impl Gate {
    pub(crate) fn start(ip: &str) -> Self {
        let epoch = Instant::now();
        let record = Record::open(softclose_fsm::Instant::from_micros(0));
        let plan = Plan::preset(Preset::Haproxy);
        let world = World { epoch, record, active: 0, admitted: 0, plan, says_who_was_told: false };
        let shared = Arc::new(Shared { world: Mutex::new(world), moved: Condvar::new(), scripted: Mutex::default() });
        let answering = Arc::clone(&shared);
        let server = Server::start(ip, move |request| {
            let scripted = answering.scripted.lock().unwrap().pop();
            scripted.unwrap_or_else(|| answering.answer(request))
        });
        Self { server, shared }
    }

    pub(crate) fn set_active(&self, active: u64) {
        self.shared.world().active = active;
        self.shared.moved.notify_all();
    }

    pub(crate) fn admit(&self, requests: u64) {
        self.shared.world().admitted += requests;
    }

    /// The shared record is gone, as after a push of another `vm_id`.
    pub(crate) fn lose_record(&self) {
        let mut world = self.shared.world();
        world.record = Record::open(handle(&mut *world, &Input::Tick).now);
        drop(world);
        self.shared.moved.notify_all();
    }

    /// From now on the gate says whom it told.
    pub(crate) fn say_who_was_told(&self) {
        self.shared.world().says_who_was_told = true;
    }

    pub(crate) fn distrust(&self, reason: DistrustReason) {
        self.shared.input(&Input::Distrust(reason));
    }

    pub(crate) fn input(&self, input: &Input) {
        self.shared.input(input);
    }

    /// The gate does by itself what `plan` says.
    pub(crate) fn configure(&self, fields: &[(&str, &str)]) {
        let mut world = self.shared.world();
        world.plan = world.plan.with(fields.iter().copied()).unwrap();
    }

    pub(crate) fn state(&self) -> StateName {
        self.status().state
    }

    pub(crate) fn status(&self) -> Status {
        let mut world = self.shared.world();
        let handled = handle(&mut *world, &Input::Tick);
        world.status(&handled)
    }

    /// The next requests are answered like this, in this order.
    pub(crate) fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        let mut replies: Vec<Reply> = replies.into_iter().collect();
        replies.reverse();
        *self.shared.scripted.lock().unwrap() = replies;
    }

    pub(crate) fn seen(&self, call: &str) -> usize {
        self.server.seen().iter().filter(|seen| seen.contains(call)).count()
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn input(&self, input: &Input) -> Handled {
        let handled = handle(&mut *self.world(), input);
        self.moved.notify_all();
        handled
    }

    fn answer(&self, request: &Request) -> Reply {
        let plan = self.world().plan.clone();
        let call = match Call::parse(request.method.as_bytes(), request.target.as_bytes(), false, &plan) {
            Ok(call) => call,
            Err(Rejection { status, reason, .. }) => {
                let handled = self.input(&Input::Tick);
                return self.document(status, &handled, Some(reason));
            }
        };
        let handled = match call {
            Call::Drain { plan, envoy_drain_started } => {
                if envoy_drain_started {
                    self.input(&Input::EnvoyDrainStarted);
                }
                self.input(&Input::Drain(plan))
            }
            Call::CloseLb => self.input(&Input::CloseLb),
            Call::Close => self.input(&Input::Close),
            Call::Reopen => self.input(&Input::Reopen),
            Call::Observe(active) => self.input(&Input::Observe(active)),
            Call::Status => self.input(&Input::Tick),
            Call::Wait { until, after, timeout } => {
                let end = Instant::now() + timeout;
                let known = after.unwrap_or(self.world().record.changes);
                loop {
                    let mut world = self.world();
                    let handled = handle(&mut *world, &Input::Tick);
                    if let Some(status) = until.status(&handled.record, known) {
                        drop(world);
                        return self.document(status, &handled, None);
                    }
                    if Instant::now() >= end {
                        drop(world);
                        return self.document(504, &handled, None);
                    }
                    drop(self.moved.wait_timeout(world, Duration::from_millis(5)).unwrap());
                }
            }
        };
        match &handled.reply {
            Said::Refused(refusal) => self.document(409, &handled, Some(refusal.reason().to_owned())),
            Said::Accepted { .. } | Said::Answer(_) | Said::Noted => self.document(200, &handled, None),
        }
    }

    fn document(&self, status: u16, handled: &Handled, error: Option<String>) -> Reply {
        let mut document = self.world().status(handled);
        document.error = error;
        if let Said::Accepted { warnings } = &handled.reply {
            document.warnings = warnings.iter().map(|warning| warning.text().to_owned()).collect();
        }
        let header = format!("{STATE_HEADER}: {}\r\ncontent-type: application/json\r\n", document.state);
        Reply::Whole(status, header, serde_json::to_string(&document).unwrap())
    }
}

impl World {
    fn status(&self, handled: &Handled) -> Status {
        let ledger = softclose_fsm::LedgerKind::Gauge;
        let status = Status::of(&handled.record, handled.reading, handled.now, &self.plan, ledger, 7);
        Status { audience: status.audience.filter(|_| self.says_who_was_told), ..status }
    }
}

impl Host for World {
    type Version = ();

    fn now(&self) -> softclose_fsm::Instant {
        softclose_fsm::Instant::from_micros(u64::try_from(self.epoch.elapsed().as_micros()).unwrap())
    }

    fn load(&mut self) -> Loaded<()> {
        Loaded { record: self.record.clone(), version: (), decoded: true }
    }

    fn reading(&mut self, _: &Record) -> Reading {
        Reading {
            blind: false,
            admitted: self.admitted,
            active: self.active,
            roll_call: RollCall { answered: 2, expected: 2, newcomers: 0 },
        }
    }

    fn store(&mut self, record: &Record, (): ()) -> Stored {
        self.record = record.clone();
        Stored::Done
    }

    fn perform(&mut self, _: &Effect, _: &Record) {}
}
