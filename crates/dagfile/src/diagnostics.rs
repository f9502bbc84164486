//! What is wrong with a dag file, and where.

use std::fmt;

use serde::Serialize;

/// One problem. `Display` gives `dags/etl.yaml:14: task "load" needs …`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub file: String,
    /// Counted from one, like the column.
    pub line: usize,
    pub column: usize,
    /// Where in the structure: `tasks.load.needs[0]`; empty for the file as a whole.
    pub field: String,
    /// Complete without the field: it names the thing and the way out.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Everything found wrong with one file, in the order of its lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Diagnostics {
    pub list: Vec<Diagnostic>,
    /// There were more problems than are worth reading at once.
    pub truncated: bool,
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.list.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{diagnostic}")?;
        }
        if self.truncated {
            write!(f, "\n… and more; these are the first {}", self.list.len())?;
        }
        Ok(())
    }
}
