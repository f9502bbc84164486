//! Jinja templates in task fields, rendered when an attempt is handed out.

use std::cell::OnceCell;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use serde_json::Value as Json;

use crate::prepare::{Binding, PrepareError};

/// Renders the fields of one attempt. The engine is made for the first field that needs it: most tasks have none.
pub(crate) struct Renderer<'a> {
    binding: &'a Binding,
    params: &'a Json,
    results: &'a Json,
    engine: OnceCell<(Environment<'static>, Value)>,
}

impl<'a> Renderer<'a> {
    pub fn new(binding: &'a Binding, params: &'a Json, results: &'a Json) -> Self {
        Self { binding, params, results, engine: OnceCell::new() }
    }

    fn engine(&self) -> &(Environment<'static>, Value) {
        self.engine.get_or_init(|| {
            let mut engine = Environment::new();
            // A misspelt name must fail the task, not become an empty argument.
            engine.set_undefined_behavior(UndefinedBehavior::Strict);
            // Far more than any sensible template needs; an endless loop ends here.
            engine.set_fuel(Some(1_000_000));
            (engine, variables(self.binding, self.params, self.results))
        })
    }

    pub fn text(&self, field: &'static str, text: &str) -> Result<String, PrepareError> {
        if !text.contains('{') {
            return Ok(text.to_owned()); // the common case costs nothing
        }
        let (engine, context) = self.engine();
        engine.render_str(text, context).map_err(|error| PrepareError::Template {
            field,
            line: error.line().unwrap_or(1),
            error: explain(&error),
        })
    }
}

/// The variables that docs/dags.md lists. Dates are in UTC, as in Airflow; a run without a logical date
/// shows the moment it was meant for.
fn variables(binding: &Binding, params: &Json, results: &Json) -> Value {
    let run = &binding.run;
    let date = run.logical_date.unwrap_or(run.run_after);
    let interval = run.data_interval.map_or((date, date), |interval| (interval.start, interval.end));
    let civil = date.to_zoned(TimeZone::UTC);
    context! {
        ds => civil.strftime("%Y-%m-%d").to_string(),
        ds_nodash => civil.strftime("%Y%m%d").to_string(),
        ts => iso(date),
        logical_date => iso(date),
        data_interval_start => iso(interval.0),
        data_interval_end => iso(interval.1),
        run_id => run.run_id.as_str(),
        dag_id => binding.spec.id.as_str(),
        dag => context! { id => binding.spec.id.as_str() },
        task_id => binding.task().id.as_str(),
        try_number => binding.try_number,
        params => Value::from(Serde(params)),
        conf => Value::from(Serde(&run.conf)),
        results => Value::from(Serde(results)),
    }
}

fn iso(at: Timestamp) -> String {
    at.to_string()
}

fn explain(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
