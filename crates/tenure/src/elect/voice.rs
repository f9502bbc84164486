//! What `tenure elect` says, on standard error: the command's output stays its own.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tenure_lease::{LeaseRecord, ScopeStatus, Succession, Term};

pub struct Voice {
    spinner: Option<ProgressBar>,
    told: Option<Told>,
}

/// What was last said about the wait, so that it is said once.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Held(Term),
    Problem,
}

impl Voice {
    pub fn new() -> Self {
        Self { spinner: None, told: None }
    }

    /// Standard error may be gone; that is no reason to end.
    pub fn say(&self, text: &str) {
        let line = format!("tenure: {text}");
        match &self.spinner {
            Some(spinner) => spinner.println(line),
            None => drop(writeln!(std::io::stderr(), "{line}")),
        }
    }

    /// Who is waited for: a line when that changes, and on a terminal a spinner that counts down.
    pub fn waiting(&mut self, scope: &str, status: Option<&ScopeStatus>) {
        let held = status.and_then(|status| status.record.as_ref()).filter(|record| record.is_held());
        let problem = status.and_then(|status| status.problem.as_ref()).map(|problem| problem.text());
        let now = match (problem, held) {
            (Some(problem), _) => Some((Told::Problem, format!("{problem}; trying again"))),
            (None, Some(record)) => {
                Some((Told::Held(record.term), format!("{}; waiting", held_by(scope, record))))
            }
            (None, None) => None,
        };
        if let Some((news, text)) = now
            && self.told.as_ref() != Some(&news)
        {
            self.say(&text);
            self.told = Some(news);
        }
        if std::io::stderr().is_terminal() {
            let spinner = self.spinner.get_or_insert_with(spinner);
            spinner.set_message(match problem {
                Some(problem) => format!("waiting for {scope}: {problem}"),
                None => format!("waiting for {scope}"),
            });
        }
    }

    pub fn waited(&mut self) {
        self.told = None;
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }
}

fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is sound");
    spinner.set_style(style);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// How it came about that the lease could be had.
pub fn how(succession: Succession) -> &'static str {
    match succession {
        Succession::First => "nobody had it before",
        Succession::Released => "it was given back",
        Succession::Expired => "it had run out",
        Succession::Crashed => "its holder had died",
        Succession::Stalled => "its holder had long stopped renewing it",
    }
}

pub fn held_by(scope: &str, record: &LeaseRecord) -> String {
    let LeaseRecord { holder, epoch, remaining, .. } = record;
    format!(
        "{scope} is held by {holder} at {epoch}, for another {:.1}s unless it is renewed",
        remaining.as_secs_f64()
    )
}
