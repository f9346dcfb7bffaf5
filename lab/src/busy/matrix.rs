//! `softclose-lab matrix --busy`: modes and presets in the worlds that a busy gateway may live in, and the known limits, in a table.

use anyhow::Result;
use softclose_fsm::Preset;

use super::play::Plan;
use super::record::Record;
use super::scenario::Rate;
use super::world::World;
use super::{Args, NAME, line, on_firm_ground, rows, tell};
use crate::haproxy::Reuse;
use crate::mode::Mode;
use crate::{Options, report};

/// One row: what differs from two pods, of which one leaves, with HAProxy's own `http-reuse`.
#[derive(Clone, Copy)]
struct Row {
    /// What a reader has to know about it; empty for a row that explains itself.
    note: &'static str,
    mode: Mode,
    preset: Preset,
    world: World,
    reuse: Reuse,
    replicas: u8,
    leaving: u8,
}

impl Row {
    const fn new(mode: Mode, preset: Preset, world: World) -> Self {
        Self { note: "", mode, preset, world, reuse: Reuse::Safe, replicas: 2, leaving: 1 }
    }

    const fn preset(preset: Preset, world: World) -> Self {
        Self::new(Mode::Softclose, preset, world)
    }

    /// Softclose does not lose nothing here, and why.
    const fn limit(note: &'static str, preset: Preset, world: World) -> Self {
        Self { note, ..Self::preset(preset, world) }
    }

    const fn reusing(self) -> Self {
        Self { reuse: Reuse::Always, ..self }
    }

    const fn of(self, replicas: u8, leaving: u8) -> Self {
        Self { replicas, leaving, ..self }
    }

    fn folder(&self, number: usize) -> String {
        let preset = super::world::preset_name(self.preset);
        let way = if self.mode == Mode::Softclose { preset } else { self.mode.name() };
        format!("{number:02}-{way}-{}", self.world.name())
    }
}

const ROWS: [Row; 23] = [
    Row::new(Mode::Current, Preset::Haproxy, World::Plain),
    Row::new(Mode::Improved, Preset::Haproxy, World::Plain),
    Row::preset(Preset::Haproxy, World::Plain),
    Row::new(Mode::Current, Preset::Haproxy, World::Soft),
    Row::new(Mode::Improved, Preset::Haproxy, World::Soft),
    Row::preset(Preset::HaproxySoft, World::Soft),
    Row::preset(Preset::HaproxySoft, World::Soft).reusing(),
    Row::new(Mode::Current, Preset::Haproxy, World::Retry),
    Row::new(Mode::Improved, Preset::Haproxy, World::Retry),
    Row::preset(Preset::HaproxyRetry, World::Retry),
    Row::preset(Preset::HaproxyRetry, World::Retry).reusing(),
    Row::limit("what is on its way is lost, and the pod does not know", Preset::HaproxyRetry, World::Retry425Only),
    Row::limit("bodies over 8 KiB are served", Preset::HaproxyRetry, World::RetryDefaultBuffer),
    Row::new(Mode::Current, Preset::Haproxy, World::Nlb),
    Row::new(Mode::Improved, Preset::Haproxy, World::Nlb),
    Row::preset(Preset::Nlb, World::Nlb),
    Row::preset(Preset::Nlb, World::Nlb).reusing(),
    Row::limit("two of three pods leave at once", Preset::HaproxySoft, World::Soft).of(3, 2),
    Row::limit("both pods leave at once: 503 for what is new", Preset::HaproxySoft, World::Soft).of(2, 2),
    Row::limit("the only pod leaves: 503 for what is new", Preset::HaproxySoft, World::Soft).of(1, 1),
    Row::limit("the only pod leaves: 425 for what is new", Preset::HaproxyRetry, World::Retry).of(1, 1),
    Row::limit(
        "a 404 is a failure to this balancer: it cuts, and the pod says that it may have been so",
        Preset::HaproxySoft,
        World::Plain,
    ),
    Row::limit("this balancer replays nothing", Preset::HaproxyRetry, World::Plain),
];

/// True if every run was busy, as promised and true.
pub(crate) async fn matrix(rate: Rate, options: &Options) -> Result<bool> {
    let out = options.place.folder()?;
    let base = Args { rate: Some(rate), ..Args::default() }.plan(Mode::Softclose, options)?;
    let mut records: Vec<Record> = Vec::new();
    let mut wrong = Vec::new();
    for (number, row) in ROWS.iter().enumerate() {
        let Row { mode, preset, world, reuse, replicas, leaving, .. } = *row;
        let plan = Plan { mode, preset, world, reuse, replicas, leaving, aloud: false, ..base.clone() };
        let dir = out.join(row.folder(number + 1));
        let (record, _reruns) = on_firm_ground(&plan, &dir).await?;
        let complaints = record.complaints();
        println!("  {} in {}: {}", record.way(), world.name(), line(&record));
        if !complaints.is_empty() {
            tell(&record, &complaints, &dir);
            wrong.push(format!("{}: {}", row.folder(number + 1), complaints.join("; ")));
        }
        records.push(record);
    }
    let mut table = rows(&records);
    let notes = std::iter::once("").chain(ROWS.iter().map(|row| row.note));
    table.iter_mut().zip(notes).for_each(|(row, note)| row.push(note.to_owned()));
    println!("\n{}\n", report::table(&table));
    std::fs::write(out.join("matrix.json"), serde_json::to_string_pretty(&table)?)?;
    println!("{NAME}, {} times; all runs: {}", base.scale(), out.display());
    for why in &wrong {
        println!("NOT AS PROMISED: {why}");
    }
    Ok(wrong.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_is_there_twice_and_every_preset_is_in_its_own_world() {
        let folders: Vec<String> =
            ROWS.iter().map(|row| format!("{}{:?}{}", row.folder(0), row.reuse, row.note)).collect();
        for (number, folder) in folders.iter().enumerate() {
            assert!(!folders[..number].contains(folder), "{folder}");
        }
        for (_, preset) in Preset::ALL {
            let own =
                |row: &&Row| row.mode == Mode::Softclose && row.preset == preset && row.world == World::of(preset);
            assert!(ROWS.iter().any(|row| own(&row)), "{preset:?}");
        }
    }
}
