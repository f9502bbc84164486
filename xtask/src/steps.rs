//! Runs steps one after the other, stops at the first that fails, and says what took how long.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;

#[derive(Debug, Default)]
pub struct Steps {
    done: Vec<(&'static str, Duration)>,
}

impl Steps {
    /// Shows the command as a person would type it, then runs it with its output in the open.
    pub fn run(&mut self, name: &'static str, command: &mut Command) -> anyhow::Result<()> {
        println!("\n==> {name}: {}", shown(command));
        let started = stopwatch();
        let status =
            command.status().with_context(|| format!("{name}: {} could not be started", shown(command)))?;
        let took = started.elapsed();
        if !status.success() {
            self.summary();
            println!("  FAILED  {name:<26} {}", seconds(took));
            anyhow::bail!("step `{name}` failed ({status}); repeat it alone with: {}", shown(command));
        }
        self.done.push((name, took));
        Ok(())
    }

    pub fn summary(&self) {
        println!();
        for (name, took) in &self.done {
            println!("  ok      {name:<26} {}", seconds(*took));
        }
    }

    pub fn total(&self) -> Duration {
        self.done.iter().map(|(_, took)| took).sum()
    }
}

pub fn seconds(duration: Duration) -> String {
    format!("{:>6.1} s", duration.as_secs_f64())
}

fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program()).to_string_lossy();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    std::iter::once(program).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[allow(
    clippy::disallowed_methods,
    reason = "a developer tool times real commands; nothing is decided by it"
)]
fn stopwatch() -> std::time::Instant {
    std::time::Instant::now()
}
