//! Good files, and the table of keys against the reader.

use std::path::{Path, PathBuf};
use std::time::Duration;

use expect_test::expect;
use serde_json::{Value, json};
use tenure_model::spec::PythonSource;
use tenure_model::{EnvValue, Schedule, TaskKind, TaskSpec, TriggerRule, WeightRule};

use super::{files, good};
use crate::keys::{self, Key, Role};
use crate::{Folder, json_schema, parse};

/// The file that the documentation of the format opens with.
const ORDERS: &str = r#"
id: orders
schedule: "0 5 * * *"
timezone: America/Sao_Paulo
catchup: false
params:
  region: { type: string, default: eu }
defaults: { retries: 2, retry_delay: 30s, timeout: 10m }
tasks:
  extract:
    bash: curl -sf "$URL" -o orders.json
    env: { URL: "https://example.org/{{ ds }}/{{ params.region }}" }
  transform:
    needs: [extract]
    python: transform.py
    resources: { cpu: 1, memory: 512Mi }
  load:
    needs: [transform]
    exec: [./load, --date, "{{ ds }}"]
    trigger_rule: all_success
  done: { needs: [load], empty: true }
"#;

#[test]
fn the_documented_file_means_what_it_says() {
    let spec = good(ORDERS);
    expect![[r##"
        {
          "id": "orders",
          "description": null,
          "schedule": {
            "type": "cron",
            "expression": "0 5 * * *"
          },
          "timezone": "America/Sao_Paulo",
          "data_intervals": false,
          "start_date": null,
          "end_date": null,
          "catchup": false,
          "params": {
            "region": {
              "default": "eu",
              "description": null,
              "schema": {
                "type": "string"
              }
            }
          },
          "tags": [],
          "owner": "tenure",
          "max_active_runs": 16,
          "max_active_tasks": 16,
          "run_timeout": null,
          "tasks": [
            {
              "id": "extract",
              "description": null,
              "needs": [],
              "trigger_rule": "all_success",
              "kind": {
                "type": "bash",
                "script": "curl -sf \"$URL\" -o orders.json"
              },
              "env": {
                "URL": {
                  "text": "https://example.org/{{ ds }}/{{ params.region }}"
                }
              },
              "retries": 2,
              "retry_delay": "30s",
              "retry_backoff": null,
              "max_retry_delay": null,
              "timeout": "10m",
              "grace": "10s",
              "pool": "default_pool",
              "pool_slots": 1,
              "priority": 1,
              "weight_rule": "downstream",
              "resources": {},
              "node_selector": {},
              "depends_on_past": false,
              "wait_for_downstream": false,
              "max_active_per_dag": null,
              "max_active_per_run": null
            },
            {
              "id": "transform",
              "description": null,
              "needs": [
                "extract"
              ],
              "trigger_rule": "all_success",
              "kind": {
                "type": "python",
                "source": {
                  "file": "transform.py"
                },
                "interpreter": "python3",
                "args": []
              },
              "env": {},
              "retries": 2,
              "retry_delay": "30s",
              "retry_backoff": null,
              "max_retry_delay": null,
              "timeout": "10m",
              "grace": "10s",
              "pool": "default_pool",
              "pool_slots": 1,
              "priority": 1,
              "weight_rule": "downstream",
              "resources": {
                "cpu": 1000,
                "memory": 536870912000
              },
              "node_selector": {},
              "depends_on_past": false,
              "wait_for_downstream": false,
              "max_active_per_dag": null,
              "max_active_per_run": null
            },
            {
              "id": "load",
              "description": null,
              "needs": [
                "transform"
              ],
              "trigger_rule": "all_success",
              "kind": {
                "type": "exec",
                "argv": [
                  "./load",
                  "--date",
                  "{{ ds }}"
                ]
              },
              "env": {},
              "retries": 2,
              "retry_delay": "30s",
              "retry_backoff": null,
              "max_retry_delay": null,
              "timeout": "10m",
              "grace": "10s",
              "pool": "default_pool",
              "pool_slots": 1,
              "priority": 1,
              "weight_rule": "downstream",
              "resources": {},
              "node_selector": {},
              "depends_on_past": false,
              "wait_for_downstream": false,
              "max_active_per_dag": null,
              "max_active_per_run": null
            },
            {
              "id": "done",
              "description": null,
              "needs": [
                "load"
              ],
              "trigger_rule": "all_success",
              "kind": {
                "type": "empty"
              },
              "env": {},
              "retries": 2,
              "retry_delay": "30s",
              "retry_backoff": null,
              "max_retry_delay": null,
              "timeout": "10m",
              "grace": "10s",
              "pool": "default_pool",
              "pool_slots": 1,
              "priority": 1,
              "weight_rule": "downstream",
              "resources": {},
              "node_selector": {},
              "depends_on_past": false,
              "wait_for_downstream": false,
              "max_active_per_dag": null,
              "max_active_per_run": null
            }
          ],
          "files": {
            "load": {
              "content": "#!/bin/sh",
              "executable": true
            },
            "transform.py": {
              "content": "print('t')",
              "executable": false
            }
          }
        }"##]]
    .assert_eq(&serde_json::to_string_pretty(&spec).unwrap());
}

fn task(text: &str) -> TaskSpec {
    let indented = text.replace('\n', "\n    ");
    good(&format!("id: d\ntasks:\n  t:\n    {indented}")).tasks.remove(0)
}

fn schedule(text: &str) -> Schedule {
    good(&format!("id: d\nschedule: {text}\ntasks: {{ t: {{ empty: true }} }}")).schedule
}

#[test]
fn schedules_are_told_apart() {
    let every = |seconds| Schedule::Every { interval: Duration::from_secs(seconds) };
    let cron = |text: &str| Schedule::Cron { expression: text.into() };
    for (text, expected) in [
        (r#""0 5 * * *""#, cron("0 5 * * *")),
        ("0 5 * * MON-FRI", cron("0 5 * * MON-FRI")),
        (r#""@daily""#, cron("@daily")),
        (r#""@annually""#, cron("@annually")),
        (r#""@once""#, Schedule::Once),
        (r#""@continuous""#, Schedule::Continuous),
        ("15m", every(900)),
        ("{ every: 1h30m }", every(5400)),
        ("null", Schedule::None),
        ("", Schedule::None),
    ] {
        assert_eq!(schedule(text), expected, "{text}");
    }
}

#[test]
fn dates_without_an_offset_are_in_the_zone_of_the_dag() {
    let dag = |zone: &str, date: &str| {
        good(&format!("id: d\ntimezone: {zone}\nstart_date: {date}\ntasks: {{ t: {{ empty: true }} }}"))
            .start_date
            .unwrap()
            .to_string()
    };
    assert_eq!(dag("UTC", "2026-01-31"), "2026-01-31T00:00:00Z");
    assert_eq!(dag("Europe/Berlin", "2026-01-31"), "2026-01-30T23:00:00Z");
    assert_eq!(dag("Europe/Berlin", "2026-07-31 05:00:00"), "2026-07-31T03:00:00Z");
    assert_eq!(dag("Europe/Berlin", "2026-07-31T05:00:00Z"), "2026-07-31T05:00:00Z");
    assert_eq!(dag("Europe/Berlin", r#""2026-07-31T05:00:00-03:00""#), "2026-07-31T08:00:00Z");
}

#[test]
fn a_task_takes_the_defaults_it_does_not_set() {
    let spec = good(
        r#"
id: d
defaults: { retries: 3, retry_backoff: true, trigger_rule: all_done, env: { A: 1 }, pool: db }
tasks:
  plain: { empty: true }
  own: { empty: true, retries: 0, retry_backoff: false, trigger_rule: always, env: { B: 2 }, pool: ~ }
"#,
    );
    let text = |value: &str| EnvValue::Text(value.into());
    let [plain, own] = spec.tasks.as_slice() else { panic!("two tasks") };
    assert_eq!(
        (plain.retries, plain.retry_backoff, plain.trigger_rule),
        (3, Some(2.0), TriggerRule::AllDone)
    );
    assert_eq!(plain.env, [("A".into(), text("1"))].into());
    assert_eq!((own.retries, own.retry_backoff, own.trigger_rule), (0, None, TriggerRule::Always));
    assert_eq!(own.env, [("B".into(), text("2"))].into(), "a key is taken over as a whole");
    assert_eq!(own.pool.as_str(), "db", "a key without a value is not written");
}

#[test]
fn scalars_keep_their_spelling_where_text_is_meant() {
    let task = task("exec: [true, 1.10, 0x1F, yes, no]\nenv: { V: 1.10, F: false, N: 007 }");
    assert_eq!(
        task.kind,
        TaskKind::Exec { argv: ["true", "1.10", "0x1F", "yes", "no"].map(String::from).into() }
    );
    let values: Vec<_> = task.env.into_values().collect();
    assert_eq!(values, ["false", "007", "1.10"].map(|text| EnvValue::Text(text.into())));
}

#[test]
fn secrets_are_names_and_never_values() {
    let task = task("empty: true\nenv: { TOKEN: { secret: api-token } }");
    assert_eq!(task.env["TOKEN"], EnvValue::Secret("api-token".into()));
}

#[test]
fn resources_are_counted_in_thousandths() {
    let task = task(
        "empty: true\nresources: { cpu: 500m, memory: 1Gi, gpu: 2, licence: 0.5 }\nweight_rule: upstream",
    );
    let amounts: Vec<_> = task.resources.0.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
    assert_eq!(amounts, [("cpu", 500), ("gpu", 2000), ("licence", 500), ("memory", 1000 << 30)]);
    assert_eq!(task.weight_rule, WeightRule::Upstream);
    for (written, bytes) in [
        ("1000", 1000),
        ("1k", 1000),
        ("2Ki", 2048),
        ("512Mi", 512 << 20),
        ("1G", 1_000_000_000),
        ("1.5Gi", 3 << 29),
    ] {
        let task = super::good(&format!(
            "id: d\ntasks: {{ t: {{ empty: true, resources: {{ memory: {written} }} }} }}"
        ));
        assert_eq!(task.tasks[0].resources.get("memory"), bytes * 1000, "{written}");
    }
}

#[test]
fn python_is_a_file_inline_code_or_a_map() {
    let inline = |code: &str| PythonSource::Inline(code.into());
    let file = || PythonSource::File("transform.py".into());
    for (text, source, interpreter, args) in [
        ("python: transform.py", file(), "python3", vec![]),
        ("python: print(1)", inline("print(1)"), "python3", vec![]),
        ("python: |\n  import x\n  # see y.py", inline("import x\n# see y.py\n"), "python3", vec![]),
        ("python: { file: transform.py, args: [--day, 1] }", file(), "python3", vec!["--day", "1"]),
        ("python: { code: print(1), interpreter: python3.12 }", inline("print(1)"), "python3.12", vec![]),
    ] {
        let args = args.into_iter().map(String::from).collect();
        let text = text.replace("|\n  import x\n  # see y.py", "|\n      import x\n      # see y.py\n");
        let kind = good(&format!("id: d\ntasks:\n  t:\n    {text}\n")).tasks.remove(0).kind;
        assert_eq!(kind, TaskKind::Python { source, interpreter: interpreter.into(), args }, "{text}");
    }
}

#[test]
fn a_body_that_is_not_text_is_sent_as_json_and_says_so() {
    let task = task(r#"http: { method: POST, url: "https://example.org", body: { day: "{{ ds }}", n: 1 } }"#);
    let TaskKind::Http { request } = task.kind else { panic!("an http task") };
    assert_eq!(request.body.as_deref(), Some(r#"{"day":"{{ ds }}","n":1}"#));
    assert_eq!(request.headers["content-type"], "application/json");
}

#[test]
fn a_body_that_is_text_is_sent_as_it_is() {
    let task = task(r#"http: { url: "https://example.org", body: "a=1", expect: 204, headers: { x-a: 1 } }"#);
    let TaskKind::Http { request } = task.kind else { panic!("an http task") };
    assert_eq!((request.method.as_str(), request.body.as_deref()), ("GET", Some("a=1")));
    assert_eq!(request.expected_status, [204]);
    assert_eq!(request.headers, [("x-a".into(), "1".into())].into());
}

#[test]
fn params_are_plain_defaults_or_schemas() {
    let spec = good(
        r#"
id: d
params:
  plain: 5
  list: [1, 2]
  nothing: null
  day: { type: string, pattern: "^[0-9-]+$", description: Which day. }
  shape: { default: { a: 1 } }
tasks: { t: { empty: true } }
"#,
    );
    let defaults: Vec<_> =
        spec.params.iter().map(|(name, param)| (name.as_str(), param.default.clone())).collect();
    assert_eq!(
        defaults,
        [
            ("day", None),
            ("list", Some(json!([1, 2]))),
            ("nothing", Some(Value::Null)),
            ("plain", Some(json!(5))),
            ("shape", Some(json!({"a": 1}))),
        ]
    );
    assert_eq!(spec.params["day"].schema.len(), 2);
    assert_eq!(spec.params["day"].description.as_deref(), Some("Which day."));
}

#[test]
fn files_are_embedded_once_with_their_executable_bit() {
    let spec = good(
        "id: d\ntasks:\n  a: { exec: [./load] }\n  b: { exec: [./load, again] }\n  c: { python: transform.py }",
    );
    let files: Vec<_> = spec.files.iter().map(|(name, file)| (name.as_str(), file.executable)).collect();
    assert_eq!(files, [("load", true), ("transform.py", false)]);
}

#[test]
fn aliases_repeat_what_they_name() {
    let spec = good(
        "id: d\ntasks:\n  a: { empty: true, env: &common { X: 1, Y: 2 } }\n  b: { empty: true, env: *common }",
    );
    assert_eq!(spec.tasks[0].env, spec.tasks[1].env);
}

#[test]
fn the_same_text_always_makes_the_same_version() {
    assert_eq!(good(ORDERS).hash(), good(ORDERS).hash());
    assert_ne!(good(ORDERS).hash(), good(&ORDERS.replace("--date", "--day")).hash());
    let stored: tenure_model::DagSpec = serde_json::from_str(&good(ORDERS).canonical_json()).unwrap();
    assert_eq!(stored, good(ORDERS));
}

#[test]
fn a_file_from_before_there_were_queues_keeps_its_hash() {
    let hash = good("id: d\ntasks: { t: { exec: [echo, hello], retries: 1 } }").hash().to_string();
    assert_eq!(
        hash, "dcdd560feaaab822abb3f2e060b9f5dc53a7dfa37b9ab9bda358d29e633fd031",
        "a new key must be left out of the stored form where it is not written"
    );
}

#[test]
fn a_task_says_where_it_may_run_and_where_it_would_rather() {
    let task = task(
        "empty: true\ntolerations: [gpu, dedicated=etl]\nqueue: big\nrun_as: etl\non_disconnect: stop\n\
         affinity: { prefer: [{ label: disk=ssd, weight: 10 }, { label: zone=b }], spread: zone }",
    );
    expect![[r#"
        {
          "tolerations": [
            "gpu",
            "dedicated=etl"
          ],
          "affinity": {
            "prefer": [
              {
                "label": "disk",
                "value": "ssd",
                "weight": 10
              },
              {
                "label": "zone",
                "value": "b",
                "weight": 1
              }
            ],
            "spread": "zone"
          },
          "queue": "big",
          "run_as": "etl",
          "on_disconnect": "stop"
        }"#]]
    .assert_eq(&{
        let mut stored = serde_json::to_value(&task).unwrap();
        let new = ["affinity", "on_disconnect", "queue", "run_as", "tolerations"];
        stored.as_object_mut().unwrap().retain(|key, _| new.contains(&key.as_str()));
        serde_json::to_string_pretty(&stored).unwrap()
    });
}

/// A file that uses one key with its sample, and what else it takes to be complete.
fn sample_file(table: &'static [Key], key: &Key) -> String {
    let Key { name, sample, .. } = key;
    let kind = if key.role == Role::Kind { "" } else { ", empty: true" };
    let url = if *name == "url" { "" } else { ", url: https://example.org" };
    if table.as_ptr() == keys::DAG.as_ptr() {
        let rest: Vec<_> = keys::of_role(keys::DAG, Role::Required)
            .filter(|required| required.name != *name)
            .map(|required| format!("{}: {}", required.name, required.sample))
            .collect();
        format!("{name}: {sample}\n{}", rest.join("\n"))
    } else if table.as_ptr() == keys::TASK.as_ptr() {
        format!("id: d\ntasks: {{ t: {{ {name}: {sample}{kind} }} }}")
    } else if table.as_ptr() == keys::PYTHON.as_ptr() {
        let code = if matches!(*name, "file" | "code") { "" } else { ", code: pass" };
        format!("id: d\ntasks: {{ t: {{ python: {{ {name}: {sample}{code} }} }} }}")
    } else if table.as_ptr() == keys::HTTP.as_ptr() {
        format!("id: d\ntasks: {{ t: {{ http: {{ {name}: {sample}{url} }} }} }}")
    } else if table.as_ptr() == keys::SCHEDULE.as_ptr() {
        format!("id: d\nschedule: {{ {name}: {sample} }}\ntasks: {{ t: {{ empty: true }} }}")
    } else if table.as_ptr() == keys::AFFINITY.as_ptr() {
        format!("id: d\ntasks: {{ t: {{ empty: true, affinity: {{ {name}: {sample} }} }} }}")
    } else if table.as_ptr() == keys::PREFERENCE.as_ptr() {
        let label = if *name == "label" { "" } else { ", label: disk=ssd" };
        format!(
            "id: d\ntasks: {{ t: {{ empty: true, affinity: {{ prefer: [{{ {name}: {sample}{label} }}] }} }} }}"
        )
    } else {
        format!("id: d\ntasks: {{ t: {{ empty: true, env: {{ X: {{ {name}: {sample} }} }} }} }}")
    }
}

const TABLES: [&[Key]; 8] = [
    keys::DAG,
    keys::TASK,
    keys::PYTHON,
    keys::HTTP,
    keys::SCHEDULE,
    keys::SECRET,
    keys::AFFINITY,
    keys::PREFERENCE,
];

#[test]
fn every_key_of_the_table_is_accepted_and_changes_the_dag() {
    let bare = good("id: d\ntasks: { t: { empty: true } }").canonical_json();
    for table in TABLES {
        for key in table {
            let text = sample_file(table, key);
            let spec = parse("f", &text, &files()).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
            let neutral = matches!(key.name, "empty" | "needs");
            assert!(neutral || spec.canonical_json() != bare, "{:?} is read and forgotten", key.name);
        }
    }
}

#[test]
fn every_setting_may_be_a_default() {
    for key in keys::of_role(keys::TASK, Role::Setting) {
        let text =
            format!("id: d\ndefaults: {{ {}: {} }}\ntasks: {{ t: {{ empty: true }} }}", key.name, key.sample);
        let written = format!("id: d\ntasks: {{ t: {{ empty: true, {}: {} }} }}", key.name, key.sample);
        assert_eq!(good(&text), good(&written), "{}", key.name);
    }
}

#[test]
fn the_schema_for_editors_has_exactly_the_keys_of_the_reader() {
    let schema = json_schema();
    let names = |at: &str| {
        let map = schema.pointer(at).unwrap_or_else(|| panic!("{at}")).as_object().unwrap();
        map.keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!(names("/properties"), keys::names(keys::DAG).collect::<Vec<_>>());
    assert_eq!(names("/$defs/task/properties"), keys::names(keys::TASK).collect::<Vec<_>>());
    let mut keywords = names("/$defs/param/properties");
    keywords.retain(|name| name != "default" && name != "description");
    assert_eq!(keywords, tenure_model::params::KEYWORDS);
    assert_eq!(schema.pointer("/$defs/task/oneOf").unwrap().as_array().unwrap().len(), 5);
    assert_eq!(schema["required"], json!(["id", "tasks"]));
}

fn project_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn every_example_is_a_good_file() {
    let folder = project_file("dags");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy();
            let spec = parse(&name, &text, &Folder::of(&path)).unwrap_or_else(|errors| panic!("{errors}"));
            assert_eq!(format!("{}.yaml", spec.id), name, "a file is called like its dag");
            assert!(text.starts_with('#'), "{name} opens with what it shows");
            seen += 1;
        }
    }
    assert!(seen >= 5, "only {seen} examples in {}", folder.display());
}

#[test]
fn the_reference_names_every_key_and_its_dags_are_good_files() {
    let reference = std::fs::read_to_string(project_file("docs/dags.md")).unwrap();
    for key in TABLES.iter().flat_map(|table| table.iter()) {
        assert!(
            reference.contains(&format!("`{}`", key.name)),
            "docs/dags.md does not mention `{}`",
            key.name
        );
    }
    for rule in TriggerRule::ALL {
        assert!(
            reference.contains(&format!("`{}`", rule.as_str())),
            "docs/dags.md does not mention {}",
            rule.as_str()
        );
    }
    let mut dags = 0;
    for block in reference.split("```yaml\n").skip(1) {
        let text = block.split("```").next().unwrap();
        if text.starts_with("id:") {
            parse("docs/dags.md", text, &files()).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
            dags += 1;
        }
    }
    assert!(dags > 0, "the reference shows a whole dag");
}
