//! `tenure task logs`: what a task has printed, and with `-f` what it prints.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use tenure_model::TaskState;

use super::Context;
use super::client::{Client, Path};
use super::failure::Failure;
use super::screen::state_of;
use super::task::TaskArgs;

/// How often a follower looks for more. Agents hand over what is printed several times a second.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// The API's name for the beginning of a log.
const START: &str = "start";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure task logs orders latest extract
  tenure task logs orders latest extract -f       until the task has ended
  tenure task logs orders latest extract --try 1  of an earlier try")]
pub struct LogsArgs {
    #[command(flatten)]
    task: TaskArgs,
    /// Number of the try; the latest by default
    #[arg(long = "try", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    try_number: Option<u32>,
    /// Go on until the task has ended, through its retries unless --try is given
    #[arg(long, short)]
    follow: bool,
}

pub fn logs(args: &LogsArgs, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let run_id = context.run_id(&client, &args.task.dag, &args.task.run)?;
    let log = Log { client: &client, task: Path::task(&args.task.dag, &run_id, &args.task.task) };
    match args.follow {
        true => log.follow(args.try_number),
        false => log.print_once(args.try_number),
    }
}

struct Log<'a> {
    client: &'a Client,
    task: Path,
}

/// How far one try's output has been printed.
struct Position {
    number: u32,
    cursor: String,
    /// The try has ended, and everything it printed has been seen.
    at_end: bool,
}

impl Position {
    fn start_of(number: u32) -> Self {
        Self { number, cursor: START.into(), at_end: false }
    }
}

struct Seen {
    try_number: u32,
    finished: bool,
}

impl Log<'_> {
    fn print_once(&self, wanted: Option<u32>) -> Result<(), Failure> {
        let number = wanted.map_or_else(|| self.look().map(|seen| seen.try_number), Ok)?;
        if number == 0 {
            eprintln!("this task has not been tried yet, so it has printed nothing");
            return Ok(());
        }
        self.print(&mut Position::start_of(number))
    }

    /// Each round looks at the task *before* it reads: what is over then is over for good.
    fn follow(&self, wanted: Option<u32>) -> Result<(), Failure> {
        let mut position = Position::start_of(wanted.unwrap_or(0));
        loop {
            let seen = self.look()?;
            if position.number == 0 {
                position = Position::start_of(seen.try_number);
            }
            if position.number > 0 && position.number <= seen.try_number {
                self.print(&mut position)?;
            }
            if position.at_end && wanted.is_none() && seen.try_number > position.number {
                position = Position::start_of(position.number + 1);
                eprintln!("--- try {}", position.number);
                continue;
            }
            let nothing_comes = seen.finished && seen.try_number < position.number.max(1);
            if nothing_comes || position.at_end && (seen.finished || wanted.is_some()) {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Prints everything there is from the position on, and moves it.
    fn print(&self, position: &mut Position) -> Result<(), Failure> {
        while !position.at_end {
            let path = self.task.clone().then("logs").then(&position.number.to_string());
            let (text, next) = self.client.get_text(&path.query("token", &position.cursor))?;
            let mut out = std::io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
            match next {
                Some(next) => position.cursor = next,
                None => position.at_end = true,
            }
            if text.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn look(&self) -> Result<Seen, Failure> {
        let task = self.client.get(&self.task)?;
        let try_number = task["try_number"].as_u64().unwrap_or(0) as u32;
        let finished = TaskState::parse(&state_of(&task)).is_some_and(TaskState::is_finished);
        Ok(Seen { try_number, finished })
    }
}
