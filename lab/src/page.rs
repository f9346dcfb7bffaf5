//! `softclose-lab report`: runs that lie in a folder as one HTML page that needs nothing else: tables, and a timeline of each run.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

use crate::mode::Mode;
use crate::played::Played;
use crate::timeline::Kind;
use crate::{chart, report, rollout, run, topology};

/// What to show, and where.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folders with runs, searched to the bottom [default: the newest one in lab-runs]
    folders: Vec<PathBuf>,
    /// The page [default: report.html in the first folder]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What was found.
#[derive(Default)]
struct Found {
    singles: Vec<(PathBuf, run::Record)>,
    rollouts: Vec<(PathBuf, rollout::Record)>,
    /// `matrix.json` and `chaos.json`: tables.
    lists: Vec<(PathBuf, Vec<Vec<String>>)>,
}

/// Writes the page.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folders = if args.folders.is_empty() { vec![newest()?] } else { args.folders.clone() };
    let mut found = Found::default();
    for folder in &folders {
        ensure!(folder.is_dir(), "{} is no folder", folder.display());
        found.search(folder)?;
    }
    ensure!(!found.is_empty(), "no events.json, rollout.json, matrix.json or chaos.json in {}", names(&folders));
    let out = match (&args.out, folders.first()) {
        (Some(out), _) => out.clone(),
        (None, Some(first)) => first.join("report.html"),
        (None, None) => PathBuf::from("report.html"),
    };
    std::fs::write(&out, found.page()).with_context(|| format!("cannot write {}", out.display()))?;
    println!("{} runs, {} lists: {}", found.singles.len() + found.rollouts.len(), found.lists.len(), out.display());
    Ok(())
}

impl Found {
    fn is_empty(&self) -> bool {
        self.singles.is_empty() && self.rollouts.is_empty() && self.lists.is_empty()
    }

    /// In the order of the names, so that the same folders give the same page.
    fn search(&mut self, folder: &Path) -> Result<()> {
        let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
        paths.sort();
        for path in paths {
            if path.is_dir() {
                self.search(&path)?;
                continue;
            }
            match path.file_name().and_then(|name| name.to_str()) {
                Some("events.json") => self.singles.push((folder.to_path_buf(), read(&path)?)),
                Some("rollout.json") => self.rollouts.push((folder.to_path_buf(), read(&path)?)),
                Some("matrix.json" | "chaos.json") => self.lists.push((path.clone(), read(&path)?)),
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    fn page(&self) -> String {
        let mut body = String::new();
        body.push_str("<h1>softclose: what a pod's deletion does to requests</h1>\n");
        body.push_str(&self.programs());
        body.push_str("<section><h2>The six events</h2><dl>");
        for kind in Kind::ALL {
            push(
                &mut body,
                format_args!("<dt>{} {}</dt><dd>{}</dd>", kind.number(), kind.name(), text(kind.meaning())),
            );
        }
        body.push_str("</dl><p>= joins events closer together than the samples can tell.</p></section>\n");
        if !self.singles.is_empty() {
            body.push_str(&self.single_table());
        }
        if !self.rollouts.is_empty() {
            body.push_str(&self.rollout_table());
        }
        for (path, list) in &self.lists {
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            push(&mut body, format_args!("<section><h2>{}</h2>{}</section>\n", text(name), list_table(list)));
        }
        for (folder, record) in &self.singles {
            let lost = record.failures();
            body.push_str(&figure(&record.scenario, record.mode, folder, &lost, &chart::single(record)));
        }
        for (folder, record) in &self.rollouts {
            let lost = record.failures();
            body.push_str(&figure(&record.scenario, record.mode, folder, &lost, &chart::rolling(record)));
        }
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <title>softclose lab report</title><style>{STYLE}</style></head><body>\n{body}</body></html>\n"
        )
    }

    /// What was run; once, as it is the same for all runs of a page, or a line for each difference.
    fn programs(&self) -> String {
        let singles = self.singles.iter().map(|(_, record)| &record.programs);
        let mut lines: Vec<String> = singles
            .chain(self.rollouts.iter().map(|(_, record)| &record.programs))
            .map(|programs| {
                programs.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join("; ")
            })
            .collect();
        lines.sort();
        lines.dedup();
        lines.iter().map(|line| format!("<p class=\"small\">{}</p>\n", text(line))).collect()
    }

    fn single_table(&self) -> String {
        let head = [
            "scenario",
            "times",
            "mode",
            "client",
            "status",
            "seconds",
            "curl exit",
            "answer",
            "fate",
            "events in order",
            "in flight at 5",
            "s to exit",
        ];
        let rows = self.singles.iter().flat_map(|(_, record)| {
            let played = Played::Single(Box::new(record.clone()));
            record.clients.iter().map(move |client| {
                vec![
                    record.scenario.clone(),
                    record.scale.clone(),
                    record.mode.name().to_owned(),
                    client.protocol.name().to_owned(),
                    client.status.to_string(),
                    format!("{:.2}", client.seconds),
                    client.curl_exit.to_string(),
                    report::answer(client),
                    record.fate(client).to_owned(),
                    record.order.clone(),
                    played.in_flight_at_down(),
                    format!("{:.1}", played.seconds_to_exit()),
                ]
            })
        });
        format!("<section><h2>Single requests</h2>{}</section>\n", table(&head, rows))
    }

    fn rollout_table(&self) -> String {
        let head = [
            "scenario",
            "times",
            "mode",
            "phase",
            "requests",
            "lost",
            "doubled",
            "p50 ms",
            "p99 ms",
            "longest s to exit",
        ];
        let rows = self.rollouts.iter().flat_map(|(_, record)| {
            record.summary.iter().filter(|row| row.stream == "all" || record.times.load.len() == 1).map(move |row| {
                let lost: Vec<String> = row.failures.iter().map(|(class, count)| format!("{count} {class}")).collect();
                let ms =
                    |seconds: Option<f64>| seconds.map_or("-".to_owned(), |seconds| format!("{:.1}", seconds * 1000.0));
                vec![
                    record.scenario.clone(),
                    record.scale.clone(),
                    record.mode.name().to_owned(),
                    row.phase.clone(),
                    row.requests.to_string(),
                    if lost.is_empty() { "0".to_owned() } else { lost.join(", ") },
                    row.doubled.to_string(),
                    ms(row.latency.map(|latency| latency.p50)),
                    ms(row.latency.map(|latency| latency.p99)),
                    format!("{:.1}", record.seconds_to_exit()),
                ]
            })
        });
        format!("<section><h2>Rolling restarts</h2>{}</section>\n", table(&head, rows))
    }
}

fn figure(scenario: &str, mode: Mode, folder: &Path, lost: &[String], svg: &str) -> String {
    let mut html = format!("<figure><h2>{} in mode {}</h2>{svg}<figcaption>", text(scenario), mode.name());
    match lost {
        [] => html.push_str("Nothing was lost."),
        lost => {
            push(&mut html, format_args!("Lost: {}", lost.len()));
            html.push_str("<ul>");
            for one in lost.iter().take(LOSSES_SHOWN) {
                push(&mut html, format_args!("<li>{}</li>", text(one)));
            }
            html.push_str("</ul>");
        }
    }
    push(
        &mut html,
        format_args!(" <span class=\"small\">{}</span></figcaption></figure>\n", text(&folder.display().to_string())),
    );
    html
}

/// Of more than this nobody reads.
const LOSSES_SHOWN: usize = 20;

/// Rows, of which the first one is the head.
fn list_table(rows: &[Vec<String>]) -> String {
    let head: Vec<&str> = rows.first().map(|head| head.iter().map(String::as_str).collect()).unwrap_or_default();
    table(&head, rows.iter().skip(1).cloned())
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut html = String::from("<div class=\"wide\"><table><thead><tr>");
    for name in head {
        push(&mut html, format_args!("<th>{}</th>", text(name)));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let class = if ["CUT", "ran TWICE"].contains(&cell.as_str()) { " class=\"lost\"" } else { "" };
            push(&mut html, format_args!("<td{class}>{}</td>", text(&cell)));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    html
}

/// Appends; a string has room for everything.
fn push(html: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _always = html.write_fmt(arguments);
}

fn text(text: &str) -> String {
    chart::escape(text)
}

const STYLE: &str = "\
:root{color-scheme:light}body{font:15px/1.45 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;color:#1b1b1b;\
background:#fff;max-width:1160px;margin:24px auto;padding:0 16px}h1{font-size:24px}h2{font-size:18px;margin:28px 0 8px}\
table{border-collapse:collapse;font-size:13px}th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid #ddd;\
vertical-align:top}th{border-bottom:2px solid #1b1b1b}.lost{font-weight:700;text-decoration:underline}.wide{overflow-x:auto}\
.small{font-size:12px;color:#444}dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 12px;font-size:13px}\
dt{font-weight:600}dd{margin:0}figure{margin:24px 0;break-inside:avoid}figure svg{max-width:100%;height:auto}\
figcaption{font-size:13px}@media print{body{margin:0;max-width:none}section{break-inside:avoid}}";

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no record of a run by this version", path.display()))
}

/// Names of the lab's folders begin with the time.
fn newest() -> Result<PathBuf> {
    let runs = topology::root()?.join("lab-runs");
    let entries = std::fs::read_dir(&runs).with_context(|| format!("no runs in {}", runs.display()))?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir());
    folders.max().with_context(|| format!("no runs in {}", runs.display()))
}

fn names(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::{cut_by_current, kept_by};

    #[test]
    fn a_page_needs_nothing_else_and_says_in_words_what_was_cut() {
        let found = Found {
            singles: vec![("a".into(), cut_by_current()), ("b".into(), kept_by(Mode::Softclose))],
            lists: vec![(
                "matrix.json".into(),
                vec![vec!["mode".into(), "s to exit".into()], vec!["current".into(), "7.2".into()]],
            )],
            ..Found::default()
        };
        let page = found.page();
        for word in ["CUT", "whole", "502", "mode softclose", "Lost: 1", "7.2", "s to exit"] {
            assert!(page.contains(word), "{word}");
        }
        for outside in ["http://", "https://", "<script", "<link", "@import"] {
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn text_from_a_record_cannot_become_markup() {
        let mut record = kept_by(Mode::Softclose);
        record.title = "<script>alert(1)</script>".to_owned();
        record.scenario = "<b>".to_owned();
        let found = Found { singles: vec![("a".into(), record)], ..Found::default() };
        assert!(!found.page().contains("<script>") && !found.page().contains("<b>"));
    }
}
