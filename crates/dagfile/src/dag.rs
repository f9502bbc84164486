//! The dag as a whole: everything of a file that is not inside a task.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::Value;
use tenure_model::timetable::{ScheduleProgress, Timetable, TimetableError};
use tenure_model::{DagSpec, ParamSpec, Schedule, TaskKind, TaskSpec, duration, params};

use crate::context::{Context, Field};
use crate::keys::{self, MOST_ACTIVE};
use crate::reading::{self, Fields};
use crate::task::{self, ReadTask};
use crate::yaml::{Data, Key, Node};
use crate::{MOST_TASKS, graph};

/// What the dag's defaults may weigh when every task has its copy of them.
const MOST_DEFAULTS: usize = 32 << 20;

pub fn read(cx: &mut Context<'_>, root: &Node) -> Option<DagSpec> {
    let here = Field::Root;
    let mut fields = Fields::open(cx, root, &here, keys::DAG, "the dag")?;
    let mut spec = DagSpec::new("", vec![]);

    if let Some(id) = fields.get("id").and_then(|node| read_id(cx, node, &here.key("id"))) {
        spec.id = id.into();
    }
    let get = fields.get("description");
    spec.description = get.and_then(|node| reading::text(cx, node, &here.key("description")));
    if let Some(owner) = fields.get("owner").and_then(|node| reading::name(cx, node, &here.key("owner"))) {
        spec.owner = owner;
    }
    if let Some(node) = fields.get("tags") {
        let field = here.key("tags");
        let items = reading::one_or_many(cx, node, &field).unwrap_or_default();
        spec.tags = reading::each(cx, items, &field, reading::name).unwrap_or_default();
    }
    if let Some(node) = fields.get("params") {
        spec.params = read_params(cx, node, &here.key("params"));
    }
    read_limits(cx, &mut fields, &mut spec);
    read_times(cx, &mut fields, &mut spec);
    read_tasks(cx, &mut fields, &mut spec);
    fields.done();
    spec.files = std::mem::take(&mut cx.embedded);
    Some(spec)
}

fn read_id(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<String> {
    let id = reading::text(cx, node, field)?;
    reading::check_id(cx, node.at, field, "dag", &id).then_some(id)
}

fn read_limits(cx: &mut Context<'_>, fields: &mut Fields<'_>, spec: &mut DagSpec) {
    let here = Field::Root;
    for (name, limit) in
        [("max_active_runs", &mut spec.max_active_runs), ("max_active_tasks", &mut spec.max_active_tasks)]
    {
        let node = fields.get(name);
        if let Some(count) = node.and_then(|node| reading::count(cx, node, &here.key(name), 1, MOST_ACTIVE)) {
            *limit = count;
        }
    }
    let node = fields.get("run_timeout");
    spec.run_timeout = node.and_then(|node| reading::positive_duration(cx, node, &here.key("run_timeout")));
}

/// Time zone, schedule and dates: each may depend on the ones before.
fn read_times(cx: &mut Context<'_>, fields: &mut Fields<'_>, spec: &mut DagSpec) {
    let here = Field::Root;
    for (name, flag) in [("data_intervals", &mut spec.data_intervals), ("catchup", &mut spec.catchup)] {
        let node = fields.get(name);
        if let Some(value) = node.and_then(|node| reading::flag(cx, node, &here.key(name))) {
            *flag = value;
        }
    }
    let zone_node = fields.get("timezone");
    let zone = match zone_node {
        Some(node) => read_zone(cx, node, &here.key("timezone")),
        None => Some(TimeZone::UTC),
    };
    if let Some(name) = zone.as_ref().and_then(TimeZone::iana_name) {
        spec.timezone = name.to_owned();
    }
    let schedule = fields.get("schedule");
    if let Some(node) = schedule {
        let field = here.key("schedule");
        if let Some(schedule) = read_schedule(cx, node, &field) {
            spec.schedule = schedule;
            check_schedule(cx, node, &field, spec);
        }
    }
    let (start, end) = (fields.get("start_date"), fields.get("end_date"));
    let Some(zone) = zone else { return };
    spec.start_date = start.and_then(|node| read_date(cx, node, &here.key("start_date"), &zone));
    spec.end_date = end.and_then(|node| read_date(cx, node, &here.key("end_date"), &zone));
    if let (Some(node), Some(first), Some(last)) = (end, spec.start_date, spec.end_date)
        && last < first
    {
        cx.error(node.at, &here.key("end_date"), "end_date lies before start_date: the dag would never run");
    }
}

fn read_zone(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<TimeZone> {
    let name = reading::name(cx, node, field)?;
    match TimeZone::get(&name) {
        Ok(zone) if zone.iana_name().is_some() => Some(zone),
        _ => {
            let known: Vec<_> = jiff::tz::db().available().map(|name| name.to_string()).collect();
            let guess = cx.suggestion(&name, known.iter().map(String::as_str));
            let message = match guess.as_str() {
                "" => TimetableError::TimeZone(name).to_string(),
                guess => format!("{name:?} is not a known time zone{guess}"),
            };
            cx.error(node.at, field, message);
            None
        }
    }
}

fn read_schedule(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Schedule> {
    if let Data::Map(_) = &node.data {
        let mut fields = Fields::open(cx, node, field, keys::SCHEDULE, "the schedule")?;
        let every = fields.get("every");
        fields.done();
        let interval = reading::duration(cx, every?, &field.key("every"))?;
        return Some(Schedule::Every { interval });
    }
    let text = reading::name(cx, node, field)?;
    Some(match text.trim() {
        "@once" => Schedule::Once,
        "@continuous" => Schedule::Continuous,
        text => match duration::parse(text) {
            Ok(interval) => Schedule::Every { interval },
            Err(_) => Schedule::Cron { expression: text.to_owned() },
        },
    })
}

fn check_schedule(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, spec: &DagSpec) {
    // Without the dates, so that the answer does not depend on the day on which the file is read.
    let bare = DagSpec { catchup: true, ..DagSpec::new("", vec![]) };
    let bare = DagSpec { schedule: spec.schedule.clone(), timezone: spec.timezone.clone(), ..bare };
    match Timetable::new(&bare) {
        Err(error) => cx.error(node.at, field, error.to_string()),
        Ok(timetable) => {
            let some_day = Timestamp::UNIX_EPOCH;
            if timetable.next(ScheduleProgress::default(), some_day).is_none() {
                cx.error(
                    node.at,
                    field,
                    format!("the schedule {} names a date that never comes", node.describe()),
                );
            }
        }
    }
}

/// A date is its first midnight; without an offset both are meant in the dag's time zone.
fn read_date(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, zone: &TimeZone) -> Option<Timestamp> {
    let text = reading::text(cx, node, field)?;
    let instant = match text.trim().parse::<Timestamp>() {
        Ok(instant) => Some(instant),
        Err(_) => text.trim().parse::<DateTime>().ok().and_then(|civil| zone.to_timestamp(civil).ok()),
    };
    if instant.is_none() {
        let message = format!(
            "{field} must be a date like 2026-01-31, 2026-01-31T05:00:00 or 2026-01-31T05:00:00+01:00, not {}",
            node.describe()
        );
        cx.error(node.at, field, message);
    }
    instant
}

fn read_params(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> BTreeMap<String, ParamSpec> {
    let entries = reading::map(cx, node, field).unwrap_or_default();
    let mut specs = BTreeMap::new();
    for (key, node) in entries {
        let field = field.key(&key.text);
        if !reading::check_id(cx, key.at, &field, "parameter", &key.text) {
            continue;
        }
        let param = match &node.data {
            Data::Map(entries) => read_param(cx, key, entries, &field),
            _ => to_json(cx, node, &field).map(|default| ParamSpec {
                default: Some(default),
                description: None,
                schema: BTreeMap::new(),
            }),
        };
        specs.extend(param.map(|param| (key.text.clone(), param)));
    }
    specs
}

fn read_param(
    cx: &mut Context<'_>,
    name: &Key,
    entries: &[(Key, Node)],
    field: &Field<'_>,
) -> Option<ParamSpec> {
    let mut param = ParamSpec { default: None, description: None, schema: BTreeMap::new() };
    let mut places = BTreeMap::new();
    for (key, node) in entries {
        let field = field.key(&key.text);
        places.insert(key.text.as_str(), node.at);
        match key.text.as_str() {
            "default" => param.default = Some(to_json(cx, node, &field)?),
            "description" => param.description = Some(reading::text(cx, node, &field)?),
            keyword if params::KEYWORDS.contains(&keyword) => {
                param.schema.insert(keyword.to_owned(), to_json(cx, node, &field)?);
            }
            unknown => {
                let known = ["default", "description"].into_iter().chain(params::KEYWORDS);
                let guess = cx.suggestion(unknown, known);
                let way_out =
                    if guess.is_empty() { " (an object as default goes under the key default)" } else { "" };
                let message =
                    format!("parameter {:?} has an unknown key {unknown:?}{guess}{way_out}", name.text);
                cx.error(key.at, &field, message);
            }
        }
    }
    let problems = params::check_schema(&param.schema);
    for (keyword, problem) in &problems {
        let field = field.key(keyword);
        cx.error(places[keyword.as_str()], &field, format!("{field} {problem}"));
    }
    if let Some(default) = param.default.as_ref().filter(|_| problems.is_empty()) {
        for problem in params::check_value(&param.schema, default) {
            let message = format!("the default of parameter {:?} {problem}", name.text);
            cx.error(places["default"], &field.key("default"), message);
        }
    }
    Some(param)
}

fn to_json(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Value> {
    node.to_json().map_err(|error| cx.yaml_error(error, field)).ok()
}

fn read_tasks(cx: &mut Context<'_>, fields: &mut Fields<'_>, spec: &mut DagSpec) {
    let here = Field::Root;
    let mut base = TaskSpec::new("", TaskKind::Empty);
    let defaults = fields.get("defaults");
    if let Some(node) = defaults {
        task::read_defaults(cx, node, &here.key("defaults"), &mut base);
    }
    let field = here.key("tasks");
    let Some(node) = fields.get("tasks") else { return };
    let Some(entries) = reading::map(cx, node, &field) else { return };
    if entries.is_empty() {
        cx.error(node.at, &field, "the dag has no tasks");
    }
    if entries.len() > MOST_TASKS {
        let message = format!("the dag has {} tasks; the most a dag may have is {MOST_TASKS}", entries.len());
        return cx.error(node.at, &field, message);
    }
    let copies = serde_json::to_string(&base).expect("a task spec is plain data").len() * entries.len();
    if let Some(node) = defaults.filter(|_| copies > MOST_DEFAULTS) {
        let message = format!(
            "defaults are too large for {} tasks: copied into each they make {} MiB (at most {} MiB)",
            entries.len(),
            copies >> 20,
            MOST_DEFAULTS >> 20
        );
        return cx.error(node.at, &here.key("defaults"), message);
    }
    let mut tasks: Vec<ReadTask> = Vec::with_capacity(entries.len());
    for (key, node) in entries {
        if cx.is_full() {
            return;
        }
        tasks.push(task::read(cx, key, node, &field, &base));
    }
    graph::check(cx, &tasks, &field);
    spec.tasks = tasks.into_iter().map(|task| task.spec).collect();
}
