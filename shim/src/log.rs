//! What the command says as it goes. kubelet shows a hook's output only when the hook fails, so every line goes to the
//! container's own log as well: the standard output of its first process.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use crate::duration::millis;

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Progress.
    Info,
    /// Something that an operator should look at.
    Warn,
    /// Something that ends in a non-zero exit code.
    Error,
}

/// Where lines go.
pub(crate) struct Log {
    start: Instant,
    form: Form,
    copy: Option<File>,
    last: Instant,
}

/// Linux' `O_NONBLOCK` and `O_NOCTTY` on x86-64 and arm64 (asm-generic/fcntl.h): a full pipe must not hold up the drain, and a
/// terminal must not become ours.
const O_NONBLOCK: i32 = 0o4000;
const O_NOCTTY: i32 = 0o400;

impl Log {
    /// Lines with times since `start`, on standard output and on `copy_to` where that is another, writable file.
    pub(crate) fn new(start: Instant, form: Form, copy_to: Option<&str>) -> Self {
        // Failing to open is the rule where the first process belongs to another user, or its output is a socket.
        let open = |path: &str| {
            OpenOptions::new()
                .append(true)
                .custom_flags(O_NONBLOCK | O_NOCTTY)
                .open(path)
                .ok()
                .filter(not_standard_output)
        };
        Self { start, form, copy: copy_to.and_then(open), last: start }
    }

    /// A line of progress.
    pub(crate) fn info(&mut self, message: &str, fields: &[(&str, Value)]) {
        self.line(Level::Info, message, fields);
    }

    /// A line that an operator should look at.
    pub(crate) fn warn(&mut self, message: &str, fields: &[(&str, Value)]) {
        self.line(Level::Warn, message, fields);
    }

    /// The last line, once more in the file that kubelet makes the container's termination message of: it outlives the pod's log in
    /// the pod's status. `path` is not created: without it there is no such message.
    pub(crate) fn last_words(&self, path: &str, message: &str) {
        let file = OpenOptions::new().write(true).truncate(true).custom_flags(O_NONBLOCK | O_NOCTTY).open(path);
        // Nobody is worse off without it.
        drop(file.and_then(|mut file| file.write_all(format!("softclose: {message}\n").as_bytes())));
    }

    /// One line.
    pub(crate) fn line(&mut self, level: Level, message: &str, fields: &[(&str, Value)]) {
        self.last = Instant::now();
        let elapsed = self.last.saturating_duration_since(self.start);
        let line = match self.form {
            Form::Text => text(elapsed, level, message),
            Form::Json => json(elapsed, level, message, fields),
        };
        // A reader that went away is no reason to stop draining.
        drop(io::stdout().lock().write_all(line.as_bytes()));
        if let Some(copy) = &mut self.copy {
            // A full pipe loses the line here; it still is on standard output.
            drop(copy.write_all(line.as_bytes()));
        }
    }

    /// How long nothing was said.
    pub(crate) fn quiet(&self) -> Duration {
        self.last.elapsed()
    }
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// The message says in words whatever the fields hold for machines.
fn text(elapsed: Duration, level: Level, message: &str) -> String {
    let mut line = format!("softclose +{:.1}s ", elapsed.as_secs_f64());
    if level != Level::Info {
        line.push_str(level.as_str());
        line.push_str(": ");
    }
    line.push_str(message);
    line.push('\n');
    line
}

fn json(elapsed: Duration, level: Level, message: &str, fields: &[(&str, Value)]) -> String {
    let mut object = Map::new();
    object.insert("softclose".to_owned(), "prestop".into());
    object.insert("elapsed_ms".to_owned(), millis(elapsed).into());
    object.insert("level".to_owned(), level.as_str().into());
    object.insert("message".to_owned(), message.into());
    for (name, value) in fields {
        object.insert((*name).to_owned(), value.clone());
    }
    format!("{}\n", Value::Object(object))
}

/// Whether it is another file than our standard output: outside of a container the two may be one terminal.
fn not_standard_output(file: &File) -> bool {
    let same = |ours: Metadata, theirs: Metadata| ours.dev() == theirs.dev() && ours.ino() == theirs.ino();
    match (std::fs::metadata("/proc/self/fd/1"), file.metadata()) {
        (Ok(ours), Ok(theirs)) => !same(ours, theirs),
        (Err(_), _) | (_, Err(_)) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Level, json, text};

    #[test]
    fn a_line_of_text_has_the_time_the_level_when_it_matters_and_the_message() {
        let span = Duration::from_millis(12_345);
        assert_eq!(text(span, Level::Info, "draining"), "softclose +12.3s draining\n");
        assert_eq!(text(span, Level::Warn, "odd"), "softclose +12.3s warn: odd\n");
    }

    #[test]
    fn a_line_of_json_is_one_object_whatever_the_message_holds() {
        let line = json(Duration::from_millis(1), Level::Error, "a \"b\"\nc", &[("n", 7.into())]);
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["message"], &value["elapsed_ms"], &value["n"]),
            (&"a \"b\"\nc".into(), &1.into(), &7.into())
        );
        assert_eq!(value["level"], "error");
    }
}
