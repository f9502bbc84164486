//! What the user sees: tables that fit the terminal, colours where they can be shown, JSON for scripts.
//!
//! Results go to stdout, everything said about them to stderr. Rendering is pure: the time, the time zone,
//! the width and the permission to colour are fields.

use std::io::Write;

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Row, Table, presets};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use tenure_clock::{Clock, SystemClock};

use super::failure::Failure;
use super::{Globals, OutputFormat};

#[derive(Clone, Debug)]
pub struct Screen {
    pub format: OutputFormat,
    pub colour: bool,
    /// `None`: the terminal's own, or unlimited where there is none.
    pub width: Option<u16>,
    pub now: Timestamp,
    pub zone: TimeZone,
}

impl Screen {
    pub fn of(globals: &Globals) -> Self {
        let no_color =
            globals.no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            format: globals.output,
            colour: !no_color && std::io::IsTerminal::is_terminal(&std::io::stdout()),
            width: None,
            now: SystemClock.now(),
            zone: TimeZone::system(),
        }
    }

    pub fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }

    /// Either the items as the API gave them, or a table; `empty` says what to do about an empty list.
    pub fn list(
        &self,
        items: &[Value],
        empty: &str,
        header: &[&str],
        row: impl Fn(&Value) -> Vec<Cell>,
    ) -> Result<(), Failure> {
        if self.is_json() {
            return json(&Value::Array(items.to_vec()));
        }
        if items.is_empty() {
            eprintln!("{empty}");
            return Ok(());
        }
        say(&self.table(header, items.iter().map(row)))
    }

    pub fn table(&self, header: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        match self.colour {
            true => table.enforce_styling(),
            false => table.force_no_tty(),
        };
        if let Some(width) = self.width.or_else(terminal_width) {
            table.set_width(width);
        }
        table.set_header(header.iter().map(|title| Cell::new(title).add_attribute(Attribute::Bold)));
        table.add_rows(rows.into_iter().map(Row::from));
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    /// `name   value` lines; absent values are left out.
    pub fn facts(&self, facts: &[(&str, Option<String>)]) -> String {
        let known: Vec<_> = facts.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))).collect();
        let width = known.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let line = |(name, value): &(&&str, &String)| format!("{name:width$}  {value}");
        known.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    pub fn state(&self, state: &str) -> Cell {
        self.state_with(state, "")
    }

    /// A state and a remark about it, in the state's colour.
    pub fn state_with(&self, state: &str, remark: &str) -> Cell {
        Cell::new(format!("{state}{remark}")).fg(colour_of(state))
    }

    /// A state inside running text.
    pub fn painted(&self, state: &str) -> String {
        if self.colour { painted(state) } else { state.to_owned() }
    }

    pub fn time(&self, item: &Value, key: &str) -> Option<String> {
        instant(item, key).map(|instant| self.shown(instant))
    }

    pub fn shown(&self, instant: Timestamp) -> String {
        instant.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string()
    }

    /// From the start of something to its end, or to now while it goes on.
    pub fn took(&self, item: &Value, start: &str, end: &str) -> Option<String> {
        let started = instant(item, start)?;
        Some(elapsed(started, instant(item, end).unwrap_or(self.now)))
    }
}

/// A number, set flush with the others of its column.
pub fn number(value: impl ToString) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}

pub fn cell(value: Option<String>) -> Cell {
    Cell::new(value.unwrap_or_else(|| "-".into()))
}

/// A text field of an item; a number is shown as one, everything else counts as absent.
pub fn text(item: &Value, key: &str) -> Option<String> {
    match &item[key] {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

pub fn instant(item: &Value, key: &str) -> Option<Timestamp> {
    item[key].as_str()?.parse().ok()
}

/// Airflow writes an untouched task instance's state as null.
pub fn state_of(item: &Value) -> String {
    text(item, "state").unwrap_or_else(|| "none".into())
}

/// `340ms`, `3.4s`, `12s`, `1m05s`, `2h03m`, `3d04h`.
pub fn elapsed(from: Timestamp, to: Timestamp) -> String {
    let millis = to.as_millisecond().saturating_sub(from.as_millisecond()).max(0);
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis}ms"),
        1..10 => format!("{seconds}.{}s", millis % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

pub fn json(value: &Value) -> Result<(), Failure> {
    say(&serde_json::to_string_pretty(value).expect("JSON values can be written"))
}

/// A line of result on stdout.
pub fn say(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

pub fn painted(state: &str) -> String {
    let code = match colour_of(state) {
        Color::Green => 32,
        Color::Red => 31,
        Color::Yellow => 33,
        Color::Cyan => 36,
        Color::Magenta => 35,
        _ => return state.to_owned(),
    };
    format!("\u{1b}[{code}m{state}\u{1b}[0m")
}

fn colour_of(state: &str) -> Color {
    match state {
        "success" | "active" | "held" | "healthy" => Color::Green,
        "failed" | "unhealthy" => Color::Red,
        "upstream_failed" | "up_for_retry" | "restarting" | "paused" => Color::Yellow,
        "running" => Color::Cyan,
        "skipped" | "removed" => Color::Magenta,
        _ => Color::Reset,
    }
}

/// Asked for stdout: a table that goes into a file or a pipe is not folded.
fn terminal_width() -> Option<u16> {
    Table::new().width()
}

#[cfg(test)]
pub(super) mod tests;
