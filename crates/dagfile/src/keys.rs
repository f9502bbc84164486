//! The keys of a dag file: one table for the reader, its suggestions, the JSON Schema and their tests, so
//! that none of them can say something the others do not know.

use serde_json::{Value, json};
use tenure_model::params::TYPES;
use tenure_model::{DagSpec, PoolName, QueueName, TriggerRule};

/// One key of a map in a dag file.
#[derive(Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    /// One sentence, shown by editors.
    pub doc: &'static str,
    pub schema: fn() -> Value,
    /// A value that the reader accepts, in YAML.
    pub sample: &'static str,
    pub role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Must be there.
    Required,
    Optional,
    /// Exactly one of these says what a task does.
    Kind,
    /// A setting of a task that the dag's `defaults` may hold too.
    Setting,
}

use Role::{Kind, Optional, Required, Setting};

const fn key(
    name: &'static str,
    role: Role,
    doc: &'static str,
    schema: fn() -> Value,
    sample: &'static str,
) -> Key {
    Key { name, doc, schema, sample, role }
}

pub const MOST_RETRIES: i64 = 1_000;
/// The weights of 20,000 tasks add up to less than 2³¹.
pub const HIGHEST_PRIORITY: i64 = 100_000;
pub const MOST_ACTIVE: i64 = 100_000;
pub const MOST_SLOTS: i64 = 10_000;
pub const HIGHEST_WEIGHT: i64 = 100;
/// Each is looked for on every node.
pub const MOST_PREFERENCES: usize = 32;
pub const LONGEST_ID: usize = 250;

pub const DAG: &[Key] = &[
    key("id", Required, "The name of the dag, unique on the server.", id, "orders"),
    key("description", Optional, "What the dag is for.", text, "Loads the orders of the day."),
    key(
        "schedule",
        Optional,
        "When it runs: a cron expression, a preset such as @daily, @once, @continuous, an interval such as 15m, or nothing.",
        schedule,
        r#""0 5 * * *""#,
    ),
    key(
        "timezone",
        Optional,
        "The IANA time zone of the schedule and of dates without an offset (default UTC).",
        text,
        "Europe/Berlin",
    ),
    key(
        "data_intervals",
        Optional,
        "With data intervals a run is dated at the start of the interval before its tick.",
        flag,
        "true",
    ),
    key("start_date", Optional, "No run before it: a date, or a date and time.", date, "2026-01-01"),
    key("end_date", Optional, "No run after it: a date, or a date and time.", date, "2026-12-31T12:00:00"),
    key(
        "catchup",
        Optional,
        "Whether every missed tick gets its run, or only the latest (default false).",
        flag,
        "true",
    ),
    key(
        "params",
        Optional,
        "Values that a trigger may set, with defaults and schemas.",
        params,
        "{ region: eu }",
    ),
    key("tags", Optional, "Words to find the dag by.", text_list, "[sales]"),
    key("owner", Optional, "Who answers for it.", text, "data-team"),
    key("max_active_runs", Optional, "How many of its runs may be active at once (default 16).", active, "2"),
    key(
        "max_active_tasks",
        Optional,
        "How many tasks of one run may be active at once (default 16).",
        active,
        "8",
    ),
    key("run_timeout", Optional, "A run that takes longer fails.", duration, "2h"),
    key(
        "defaults",
        Optional,
        "Settings for every task that does not set them itself.",
        defaults,
        "{ retries: 2 }",
    ),
    key("tasks", Required, "The tasks, by id.", tasks, "{ only: { empty: true } }"),
];

pub const TASK: &[Key] = &[
    key("bash", Kind, "A script for bash. A template.", text, "echo hello"),
    key(
        "exec",
        Kind,
        "A program and its arguments. Templates. ./name is a file beside the dag file.",
        argv,
        "[echo, hello]",
    ),
    key(
        "python",
        Kind,
        "A file beside the dag file, inline code, or a map with interpreter and arguments.",
        python,
        "print('hello')",
    ),
    key("http", Kind, "A request: a url, or a map.", http, "https://example.org/"),
    key("empty", Kind, "Nothing to run: a joint of the graph.", only_true, "true"),
    key("description", Optional, "What the task does.", text, "Copies the orders."),
    key("needs", Optional, "The tasks that must come before it.", one_or_many, "[]"),
    key(
        "trigger_rule",
        Setting,
        "Which outcomes of its needs let it run (default all_success).",
        trigger_rule,
        "all_done",
    ),
    key("retries", Setting, "How often it is tried again after a failure (default 0).", retries, "3"),
    key("retry_delay", Setting, "How long it waits before the next try (default 5m).", duration, "30s"),
    key("retry_backoff", Setting, "Multiplies the delay with every try; true means 2.", backoff, "1.5"),
    key("max_retry_delay", Setting, "The longest delay that backoff may reach.", duration, "1h"),
    key("timeout", Setting, "A try that takes longer is stopped and fails.", duration, "10m"),
    key(
        "grace",
        Setting,
        "How long a stopped task has between SIGTERM and SIGKILL (default 10s).",
        duration,
        "5s",
    ),
    key("pool", Setting, "The pool it takes slots from.", pool, "database"),
    key("pool_slots", Setting, "How many slots it takes (default 1).", slots, "2"),
    key("priority", Setting, "Its weight among tasks that compete (default 1).", priority, "10"),
    key(
        "weight_rule",
        Setting,
        "Whose weights are added to its own (default downstream).",
        weight_rule,
        "absolute",
    ),
    key(
        "resources",
        Setting,
        "What it needs of a node: cpu, memory, or any named resource.",
        resources,
        "{ cpu: 500m, memory: 512Mi }",
    ),
    key("node_selector", Setting, "Labels its node must carry.", text_map, "{ disk: ssd }"),
    key(
        "tolerations",
        Setting,
        "Taints that do not keep it away from a node: key for every value, or key=value.",
        one_or_many,
        "[gpu, dedicated=etl]",
    ),
    key(
        "affinity",
        Setting,
        "Where it would rather run. A wish: it never waits for it.",
        affinity,
        "{ prefer: [{ label: disk=ssd, weight: 10 }], spread: zone }",
    ),
    key("queue", Setting, "Only nodes that serve this queue get it (default \"default\").", queue, "gpu"),
    key("run_as", Setting, "The user its process runs as (default: the agent's own).", text, "etl"),
    key(
        "on_disconnect",
        Setting,
        "What its agent does with it when no server can be reached: continue (default) or stop.",
        on_disconnect,
        "stop",
    ),
    key(
        "env",
        Setting,
        "Environment variables. Templates, or secrets by name.",
        env,
        "{ REGION: eu, TOKEN: { secret: api } }",
    ),
    key(
        "depends_on_past",
        Setting,
        "It waits until it has succeeded or been skipped in the previous run.",
        flag,
        "true",
    ),
    key(
        "wait_for_downstream",
        Setting,
        "It also waits for what directly follows it in the previous run.",
        flag,
        "true",
    ),
    key("max_active_per_dag", Setting, "How many of it may be active in all runs together.", active, "1"),
    key("max_active_per_run", Setting, "How many of it may be active in one run.", active, "1"),
];

pub const PYTHON: &[Key] = &[
    key("file", Optional, "A file beside the dag file.", text, "transform.py"),
    key("code", Optional, "The code itself. A template.", text, "print('hello')"),
    key("interpreter", Optional, "The program that runs it (default python3).", text, "python3.12"),
    key("args", Optional, "Its arguments. Templates.", text_list, r#"["{{ ds }}"]"#),
];

pub const HTTP: &[Key] = &[
    key("url", Required, "Where to. A template.", text, r#""https://example.org/{{ ds }}""#),
    key("method", Optional, "GET unless said otherwise.", method, "POST"),
    key("headers", Optional, "Headers. Templates.", text_map, "{ accept: text/plain }"),
    key(
        "body",
        Optional,
        "Text, or any value, which is sent as JSON. A template.",
        anything,
        "{ day: \"{{ ds }}\" }",
    ),
    key("expect", Optional, "The status codes that mean success (default: any 2xx).", expect, "[200, 204]"),
];

pub const SCHEDULE: &[Key] = &[key("every", Required, "The time between two runs.", duration, "15m")];

pub const SECRET: &[Key] = &[key("secret", Required, "The name of a secret on the server.", text, "api")];

pub const AFFINITY: &[Key] = &[
    key("prefer", Optional, "Labels that make a node better.", prefer, "[{ label: disk=ssd, weight: 10 }]"),
    key("spread", Optional, "A label over whose values attempts of this dag are spread.", text, "zone"),
];

pub const PREFERENCE: &[Key] = &[
    key("label", Required, "A label with its value, as key=value.", text, "disk=ssd"),
    key("weight", Optional, "How much it counts against the others (1 to 100, default 1).", weight, "10"),
];

pub const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
pub const WEIGHT_RULES: [&str; 3] = ["downstream", "upstream", "absolute"];
pub const ON_DISCONNECT: [&str; 2] = ["continue", "stop"];

pub fn names(table: &'static [Key]) -> impl Iterator<Item = &'static str> {
    table.iter().map(|key| key.name)
}

pub fn of_role(table: &'static [Key], role: Role) -> impl Iterator<Item = &'static Key> {
    table.iter().filter(move |key| key.role == role)
}

/// The JSON Schema of a map with these keys and no others.
pub fn object<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Value {
    let keys: Vec<&Key> = keys.into_iter().collect();
    let properties: serde_json::Map<_, _> = keys
        .iter()
        .map(|key| {
            let mut schema = (key.schema)();
            schema["description"] = key.doc.into();
            (key.name.to_owned(), schema)
        })
        .collect();
    let required: Vec<_> = keys.iter().filter(|key| key.role == Required).map(|key| key.name).collect();
    json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties })
}

fn anything() -> Value {
    json!({})
}

fn text() -> Value {
    json!({ "type": ["string", "number", "boolean"] })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn only_true() -> Value {
    json!({ "const": true })
}

fn id() -> Value {
    json!({ "type": ["string", "number"], "pattern": "^[A-Za-z0-9_.-]+$", "maxLength": LONGEST_ID })
}

fn pool() -> Value {
    json!({ "type": "string", "default": PoolName::DEFAULT })
}

fn duration() -> Value {
    json!({ "type": "string", "pattern": "^\\s*([0-9]+\\s*(ms|s|m|h|d)\\s*)+$", "examples": ["30s", "10m", "1h30m"] })
}

fn date() -> Value {
    json!({ "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}", "examples": ["2026-01-01", "2026-01-01T05:00:00+01:00"] })
}

fn text_list() -> Value {
    json!({ "type": "array", "items": text() })
}

fn argv() -> Value {
    json!({ "type": "array", "items": text(), "minItems": 1 })
}

fn one_or_many() -> Value {
    json!({ "anyOf": [text(), text_list()] })
}

fn text_map() -> Value {
    json!({ "type": "object", "additionalProperties": text() })
}

fn whole(least: i64, most: i64) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most })
}

fn active() -> Value {
    whole(1, MOST_ACTIVE)
}

fn retries() -> Value {
    whole(0, MOST_RETRIES)
}

fn slots() -> Value {
    whole(1, MOST_SLOTS)
}

fn priority() -> Value {
    whole(-HIGHEST_PRIORITY, HIGHEST_PRIORITY)
}

fn backoff() -> Value {
    json!({ "anyOf": [flag(), { "type": "number", "exclusiveMinimum": 1, "maximum": 100 }] })
}

fn trigger_rule() -> Value {
    json!({ "enum": TriggerRule::ALL.map(TriggerRule::as_str) })
}

fn weight_rule() -> Value {
    json!({ "enum": WEIGHT_RULES })
}

fn schedule() -> Value {
    json!({ "anyOf": [{ "type": ["string", "null"] }, object(SCHEDULE)] })
}

fn params() -> Value {
    json!({ "type": "object", "additionalProperties": { "anyOf": [
        { "type": ["string", "number", "boolean", "null", "array"], "description": "A default." },
        { "$ref": "#/$defs/param" },
    ] } })
}

fn defaults() -> Value {
    json!({ "$ref": "#/$defs/defaults" })
}

fn tasks() -> Value {
    json!({ "type": "object", "minProperties": 1, "additionalProperties": { "$ref": "#/$defs/task" } })
}

fn python() -> Value {
    json!({ "anyOf": [{ "type": "string" }, object(PYTHON)] })
}

fn http() -> Value {
    json!({ "anyOf": [{ "type": "string" }, object(HTTP)] })
}

fn method() -> Value {
    json!({ "enum": METHODS })
}

fn expect() -> Value {
    let status = whole(100, 599);
    json!({ "anyOf": [status, { "type": "array", "items": status }] })
}

fn resources() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": ["number", "string"] } })
}

fn affinity() -> Value {
    object(AFFINITY)
}

fn prefer() -> Value {
    json!({ "type": "array", "items": object(PREFERENCE), "maxItems": MOST_PREFERENCES })
}

fn weight() -> Value {
    whole(1, HIGHEST_WEIGHT)
}

fn queue() -> Value {
    json!({ "type": "string", "default": QueueName::DEFAULT })
}

fn on_disconnect() -> Value {
    json!({ "enum": ON_DISCONNECT })
}

fn env() -> Value {
    json!({ "type": "object", "additionalProperties": { "anyOf": [text(), object(SECRET)] } })
}

/// JSON Schema (draft 2020-12) of a dag file, for editors.
pub fn json_schema() -> Value {
    let settings = || of_role(TASK, Setting);
    let mut task = object(TASK);
    let exactly_one: Vec<_> = of_role(TASK, Kind).map(|kind| json!({ "required": [kind.name] })).collect();
    task["oneOf"] = exactly_one.into();
    let mut schema = object(DAG);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Tenure dag".into();
    schema["$defs"] = json!({ "task": task, "defaults": object(settings()), "param": param() });
    schema
}

fn param() -> Value {
    let one_type = json!({ "enum": TYPES });
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "default": { "description": "Its value when a trigger does not set it." },
            "description": { "type": "string" },
            "type": { "anyOf": [one_type, { "type": "array", "items": one_type, "minItems": 1 }] },
            "enum": { "type": "array", "minItems": 1 },
            "const": {},
            "minimum": { "type": "number" },
            "maximum": { "type": "number" },
            "exclusiveMinimum": { "type": "number" },
            "exclusiveMaximum": { "type": "number" },
            "minLength": { "type": "integer", "minimum": 0 },
            "maxLength": { "type": "integer", "minimum": 0 },
            "pattern": { "type": "string" },
            "format": { "type": "string" },
            "title": { "type": "string" },
            "examples": { "type": "array" },
        },
    })
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const _: () = assert!(DagSpec::DEFAULT_MAX_ACTIVE_RUNS == 16 && DagSpec::DEFAULT_MAX_ACTIVE_TASKS == 16);
