//! A run on its way: what the server says of it, and how that is shown while somebody waits.
//!
//! On a terminal: a bar for the whole and a line for each task that runs. Elsewhere: a line for each task
//! that changes its state. Everything goes to stderr; stdout belongs to the result.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tenure_model::duration;

use super::client::{Client, Path};
use super::failure::Failure;
use super::screen::{Screen, elapsed, painted};

/// More lines than this would push the bar off a small terminal.
const MOST_LINES: usize = 10;
/// Often enough for a spinner to look alive.
const REDRAW_EVERY: Duration = Duration::from_millis(100);

/// The answer of `GET /api/tenure/dags/{dag}/runs/{run}/progress`, as far as it is shown.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Progress {
    pub revision: i64,
    pub state: String,
    #[serde(default)]
    pub reason: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub tasks: Vec<TaskProgress>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TaskProgress {
    pub id: String,
    #[serde(default = "unmapped")]
    pub map_index: i32,
    pub state: String,
    pub try_number: u32,
    #[serde(default)]
    pub reason: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

fn unmapped() -> i32 {
    -1
}

impl Progress {
    /// As it is now.
    pub fn of(client: &Client, dag: &str, run_id: &str) -> Result<Self, Failure> {
        Self::ask(client, &Self::path(dag, run_id))
    }

    /// As it is now, with what holds up those that have not begun.
    pub fn with_reasons(client: &Client, dag: &str, run_id: &str) -> Result<Self, Failure> {
        Self::ask(client, &Self::path(dag, run_id).query("reasons", true))
    }

    /// As soon as it is no longer at this revision, or when `wait` is over.
    pub fn after(
        client: &Client,
        dag: &str,
        run_id: &str,
        revision: i64,
        wait: Duration,
    ) -> Result<Self, Failure> {
        let path =
            Self::path(dag, run_id).query("after_revision", revision).query("wait", duration::format(wait));
        Self::ask(client, &path)
    }

    fn path(dag: &str, run_id: &str) -> Path {
        Path::new("/api/tenure/dags").then(dag).then("runs").then(run_id).then("progress")
    }

    fn ask(client: &Client, path: &Path) -> Result<Self, Failure> {
        serde_json::from_value(client.get(path)?).map_err(|error| {
            Failure::Failed(format!("the server's progress report cannot be understood: {error}"))
        })
    }

    pub fn is_finished(&self) -> bool {
        tenure_model::RunState::parse(&self.state).is_some_and(|state| state.is_finished())
    }

    pub fn succeeded(&self) -> bool {
        self.state == tenure_model::RunState::Success.as_str()
    }

    /// The object that scripts rely on.
    pub fn contract(&self, dag: &str, run_id: &str) -> Value {
        let task = |task: &TaskProgress| {
            let mut object = json!({
                "id": task.id,
                "state": task.state,
                "try_number": task.try_number,
                "started_at": task.started_at,
                "ended_at": task.ended_at,
            });
            if task.map_index >= 0 {
                object["map_index"] = json!(task.map_index);
            }
            object
        };
        json!({
            "dag_id": dag,
            "run_id": run_id,
            "state": self.state,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "tasks": self.tasks.iter().map(task).collect::<Vec<_>>(),
        })
    }

    fn done(&self) -> usize {
        self.tasks.iter().filter(|task| task.is_finished()).count()
    }

    pub fn of_state<'a>(&'a self, state: &'a str) -> impl Iterator<Item = &'a TaskProgress> {
        self.tasks.iter().filter(move |task| task.state == state)
    }
}

impl TaskProgress {
    fn is_finished(&self) -> bool {
        tenure_model::TaskState::parse(&self.state).is_some_and(|state| state.is_finished())
    }

    /// The task and, where it is mapped, which of its instances.
    pub fn name(&self) -> String {
        if self.map_index < 0 { self.id.clone() } else { format!("{}[{}]", self.id, self.map_index) }
    }

    fn moment(&self) -> (&str, u32) {
        (&self.state, self.try_number)
    }
}

/// What is new in `after`, one line for each task, in the order of the dag.
pub fn changes(before: Option<&Progress>, after: &Progress) -> Vec<String> {
    let known: BTreeMap<(&str, i32), &TaskProgress> = before
        .into_iter()
        .flat_map(|progress| &progress.tasks)
        .map(|task| ((task.id.as_str(), task.map_index), task))
        .collect();
    let is_news = |task: &&TaskProgress| match known.get(&(task.id.as_str(), task.map_index)) {
        Some(before) => before.moment() != task.moment(),
        None => task.state != "none",
    };
    after.tasks.iter().filter(is_news).map(line).collect()
}

fn line(task: &TaskProgress) -> String {
    let took = match (task.is_finished(), task.started_at, task.ended_at) {
        (true, Some(start), Some(end)) => format!(" after {}", elapsed(start, end)),
        _ => String::new(),
    };
    let again = if task.try_number > 1 { format!(", try {}", task.try_number) } else { String::new() };
    let reason = task.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{}: {}{took}{again}{reason}", task.name(), task.state)
}

/// Shows progress while it comes in.
pub enum Display {
    Bars(Bars),
    Lines { last: Option<Progress> },
}

impl Display {
    pub fn new(screen: &Screen, title: &str) -> Self {
        match std::io::stderr().is_terminal() {
            true => Self::Bars(Bars::new(title, screen.colour)),
            false => Self::Lines { last: None },
        }
    }

    pub fn update(&mut self, progress: &Progress) {
        match self {
            Self::Bars(bars) => bars.update(progress),
            Self::Lines { last } => {
                for line in changes(last.as_ref(), progress) {
                    note(&line);
                }
                *last = Some(progress.clone());
            }
        }
    }

    /// A remark between the states.
    pub fn remark(&self, text: &str) {
        match self {
            Self::Bars(bars) => bars.all.suspend(|| note(text)),
            Self::Lines { .. } => note(text),
        }
    }

    /// Makes room for the result.
    pub fn finish(&self) {
        if let Self::Bars(bars) = self {
            bars.clear();
        }
    }

    /// For the thread that waits for Ctrl-C.
    pub fn cleaner(&self) -> impl Fn() + Send + 'static {
        let bars = match self {
            Self::Bars(bars) => Some(bars.all.clone()),
            Self::Lines { .. } => None,
        };
        move || {
            if let Some(bars) = &bars {
                let _ = bars.clear(); // a terminal that is gone needs no cleaning
            }
        }
    }
}

/// Nobody may be listening to stderr any more; the run is none the worse for it.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

pub struct Bars {
    all: MultiProgress,
    whole: ProgressBar,
    lines: Vec<(String, ProgressBar)>,
    more: ProgressBar,
    colour: bool,
}

impl Bars {
    fn new(title: &str, colour: bool) -> Self {
        let all = MultiProgress::new();
        let whole = all.add(
            ProgressBar::new(0)
                .with_message(title.to_owned())
                .with_style(style("{msg}  [{bar:30}] {pos}/{len}  {elapsed}")),
        );
        let more = all.add(ProgressBar::new_spinner().with_style(style("  {msg}")));
        whole.enable_steady_tick(REDRAW_EVERY);
        Self { all, whole, lines: vec![], more, colour }
    }

    fn update(&mut self, progress: &Progress) {
        self.whole.set_length(progress.tasks.len() as u64);
        self.whole.set_position(progress.done() as u64);
        let running: Vec<&TaskProgress> = progress.of_state("running").collect();
        let shown: Vec<String> = running.iter().take(MOST_LINES).map(|task| self.label(task)).collect();
        self.lines.retain(|(label, bar)| {
            let stays = shown.contains(label);
            if !stays {
                bar.finish_and_clear();
                self.all.remove(bar);
            }
            stays
        });
        for label in shown {
            if !self.lines.iter().any(|(known, _)| *known == label) {
                let bar = ProgressBar::new_spinner()
                    .with_message(label.clone())
                    .with_style(style("  {spinner} {msg}  {elapsed}"));
                let bar = self.all.insert_before(&self.more, bar);
                bar.enable_steady_tick(REDRAW_EVERY);
                self.lines.push((label, bar));
            }
        }
        self.more.set_message(self.rest(progress, running.len()));
    }

    fn label(&self, task: &TaskProgress) -> String {
        let state = if self.colour { painted(&task.state) } else { task.state.clone() };
        let again = if task.try_number > 1 { format!(" (try {})", task.try_number) } else { String::new() };
        format!("{} {state}{again}", task.name())
    }

    /// What has no line of its own, counted.
    fn rest(&self, progress: &Progress, running: usize) -> String {
        let count = |state| (state, progress.of_state(state).count());
        let mut counts = vec![("more running", running.saturating_sub(MOST_LINES))];
        counts.extend(
            ["queued", "scheduled", "up_for_retry", "failed", "upstream_failed", "skipped"].map(count),
        );
        let shown = counts
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(state, count)| format!("{count} {state}"));
        shown.collect::<Vec<_>>().join(", ")
    }

    fn clear(&self) {
        let _ = self.all.clear(); // a terminal that is gone needs no cleaning
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("our own templates are well-formed").progress_chars("=> ")
}

#[cfg(test)]
mod tests;
