//! What happened, told while it happens and kept for the record.

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::timeline::Clock;
use crate::watch::lock;

/// One line of the story.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) at_s: f64,
    pub(crate) text: String,
}

/// A story that every part of a run may add to.
#[derive(Clone)]
pub(crate) struct Story {
    clock: Clock,
    lines: Arc<Mutex<Vec<Line>>>,
    aloud: bool,
}

impl Story {
    pub(crate) fn start(clock: Clock, aloud: bool) -> Self {
        Self { clock, lines: Arc::default(), aloud }
    }

    pub(crate) fn tell(&self, text: impl Into<String>) {
        self.tell_at(self.clock.now(), text);
    }

    pub(crate) fn tell_at(&self, at_s: f64, text: impl Into<String>) {
        let text = text.into();
        if self.aloud {
            println!("  {at_s:6.2} s  {text}");
        }
        lock(&self.lines).push(Line { at_s, text });
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        lock(&self.lines).clone()
    }
}
