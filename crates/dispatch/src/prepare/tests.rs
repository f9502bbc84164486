//! Goal: authors get what they wrote, rendered; mistakes name their place; secrets are known as such.

use super::*;
use tenure_model::{ParamSpec, RunKey, TaskNo};

struct OneSecret;

impl SecretSource for OneSecret {
    fn secret(&self, name: &str) -> Option<String> {
        (name == "DB").then(|| "hunter2".to_owned())
    }
}

fn binding(task: TaskSpec, conf: Value) -> Binding {
    let region = ParamSpec { default: Some("eu".into()), description: None, schema: BTreeMap::new() };
    let spec =
        DagSpec { params: [("region".to_owned(), region)].into(), ..DagSpec::new("orders", vec![task]) };
    Binding {
        attempt: AttemptId(uuid::Uuid::from_u128(7)),
        ti: TiKey::unmapped(RunKey(1), TaskNo(0)),
        node: NodeId::new("n"),
        scope: "scheduler/shard-00".into(),
        epoch: 3,
        tenant: TenantId::default_tenant(),
        run: Arc::new(RunContext {
            run_id: RunId::new("manual__x"),
            logical_date: Some("2026-03-01T04:05:06Z".parse().unwrap()),
            data_interval: None,
            run_after: "2026-03-02T00:00:00Z".parse().unwrap(),
            conf,
        }),
        spec: Arc::new(spec),
        task: 0,
        try_number: 2,
    }
}

/// Program, environment, and what must not be shown.
type Prepared = (Program, BTreeMap<String, String>, Vec<String>);

/// Everything but the results, which need a store.
fn assign(task: TaskSpec, conf: Value, results: Value) -> Result<Prepared, String> {
    let binding = binding(task, conf);
    let mut hidden = BTreeSet::new();
    let params = params(&binding.spec, &binding.run.conf);
    hide_sensitive(&params, &mut hidden);
    let renderer = Renderer::new(&binding, &params, &results);
    let env =
        environment(binding.task(), &renderer, &OneSecret, &mut hidden).map_err(|error| error.to_string())?;
    let mut files = BTreeMap::new();
    let program =
        program(binding.task(), &renderer, binding.attempt, &mut files).map_err(|error| error.to_string())?;
    Ok((program, env, hidden.into_iter().collect()))
}

fn argv(script: &str, conf: Value, results: Value) -> Result<String, String> {
    let task = TaskSpec::new("t", TaskKind::Exec { argv: vec![script.to_owned()] });
    match assign(task, conf, results)?.0 {
        Program::Process { argv } => Ok(argv.concat()),
        Program::Http { .. } => unreachable!("an exec task is a process"),
    }
}

#[test]
fn dates_ids_params_and_results_are_there() {
    let text = "{{ ds }} {{ ds_nodash }} {{ ts }} {{ run_id }} {{ dag_id }}/{{ dag.id }}/{{ task_id }} {{ try_number }} \
                {{ params.region }} {{ conf.n }} {{ results.extract.rows }}";
    let rendered = argv(text, serde_json::json!({"n": 5}), serde_json::json!({"extract": {"rows": 42}}));
    let expected = "2026-03-01 20260301 2026-03-01T04:05:06Z manual__x orders/orders/t 2 eu 5 42";
    assert_eq!(rendered.as_deref(), Ok(expected));
}

#[test]
fn conf_overrides_a_param() {
    let conf = serde_json::json!({"region": "us"});
    assert_eq!(argv("{{ params.region }}", conf, Value::Null).as_deref(), Ok("us"));
}

#[test]
fn a_misspelt_name_fails_and_says_where() {
    let error = argv("one\n{{ params.regoin }}", Value::Null, Value::Null).unwrap_err();
    assert_eq!(error, "template in exec, line 2: undefined value: `params.regoin` is undefined");
}

#[test]
fn an_endless_template_ends() {
    let text = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    assert!(argv(text, Value::Null, Value::Null).is_err());
}

#[test]
fn values_reach_scripts_as_environment_not_as_shell_text() {
    let env = [
        ("REGION".to_owned(), EnvValue::Text("{{ params.region }}".into())),
        ("PGPASSWORD".to_owned(), EnvValue::Secret("DB".into())),
    ];
    let task =
        TaskSpec { env: env.into(), ..TaskSpec::new("t", TaskKind::Bash { script: "echo $REGION".into() }) };
    let (program, env, hidden) =
        assign(task, serde_json::json!({"region": "$(rm -rf x)"}), Value::Null).unwrap();
    assert_eq!(program, Program::Process { argv: vec!["bash".into(), "-c".into(), "echo $REGION".into()] });
    assert_eq!(env["REGION"], "$(rm -rf x)");
    assert_eq!(env["PGPASSWORD"], "hunter2");
    assert_eq!(hidden, ["hunter2"]);
}

#[test]
fn a_missing_secret_says_how_to_set_it() {
    let env = [("X".to_owned(), EnvValue::Secret("NOPE".into()))];
    let task = TaskSpec { env: env.into(), ..TaskSpec::new("t", TaskKind::Exec { argv: vec!["x".into()] }) };
    let error = assign(task, Value::Null, Value::Null).unwrap_err();
    assert_eq!(
        error,
        "env X asks for the secret \"NOPE\", which is not there: set TENURE_SECRET_NOPE for the server"
    );
}

#[test]
fn sensitive_looking_values_are_hidden_however_deep() {
    let mut hidden = BTreeSet::new();
    hide_sensitive(&serde_json::json!({"db": [{"api-key": "k1", "host": "h"}], "Token": "t1"}), &mut hidden);
    assert_eq!(hidden.into_iter().collect::<Vec<_>>(), ["k1", "t1"]);
}

#[test]
fn a_script_too_long_for_an_argument_travels_as_a_file() {
    let task = TaskSpec::new("t", TaskKind::Bash { script: "#".repeat(LONGEST_ARGUMENT + 1) });
    let binding = binding(task, Value::Null);
    let renderer = Renderer::new(&binding, &Value::Null, &Value::Null);
    let mut files = BTreeMap::new();
    let program = program(binding.task(), &renderer, binding.attempt, &mut files).unwrap();
    let Program::Process { argv } = program else { unreachable!("bash is a process") };
    assert_eq!(files.keys().collect::<Vec<_>>(), [&argv[1]]);
}
