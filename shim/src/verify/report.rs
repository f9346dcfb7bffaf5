use serde_json::json;

use super::look::plural;

/// What was seen, each in a sentence.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// As it should be.
    pub(super) good: Vec<String>,
    /// Not as it should be: a drain would not be counted whole, or not happen.
    pub(super) wrong: Vec<String>,
    /// What nobody can count there: a clean end says nothing of it.
    pub(super) uncounted: Vec<String>,
    /// What could be better.
    pub(super) hints: Vec<String>,
}

impl Report {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let kinds = [("ok", &self.good), ("WRONG", &self.wrong), ("limit", &self.uncounted), ("hint", &self.hints)];
        for (kind, lines) in kinds {
            for line in lines {
                text.push_str(&format!("{kind:<12}{line}\n"));
            }
        }
        text.push_str(&match (self.wrong.len(), self.uncounted.len()) {
            (0, 0) => "as it should be\n".to_owned(),
            (0, _) => "as it should be; \"clean\" will say nothing of what is beyond a limit\n".to_owned(),
            (wrong, _) => format!("{} not as it should be\n", plural(wrong, "thing")),
        });
        text
    }

    /// For machines, on one line.
    pub(super) fn json(&self) -> String {
        let Self { good, wrong, uncounted, hints } = self;
        let document =
            json!({"ok": wrong.is_empty(), "good": good, "wrong": wrong, "uncounted": uncounted, "hints": hints});
        format!("{document}\n")
    }
}
