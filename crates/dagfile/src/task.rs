//! One task: its settings, with the dag's defaults below them, and what it needs.

use std::collections::BTreeMap;

use tenure_model::{EnvValue, OnDisconnect, Resources, TaskId, TaskKind, TaskSpec, TriggerRule, WeightRule};

use crate::context::{Context, Field};
use crate::keys::{self, HIGHEST_PRIORITY, MOST_ACTIVE, MOST_RETRIES, MOST_SLOTS, Role};
use crate::kind;
use crate::placing;
use crate::reading::{self, Fields};
use crate::yaml::{Data, Key, Kind, Node, Place};

pub struct ReadTask {
    pub spec: TaskSpec,
    /// Where each of `spec.needs` is written.
    pub needs_at: Vec<Place>,
}

pub fn read_defaults(cx: &mut Context<'_>, node: &Node, field: &Field<'_>, base: &mut TaskSpec) {
    let Data::Map(entries) = &node.data else {
        return cx.error(
            node.at,
            field,
            format!("defaults must be a map of task settings, not {}", node.describe()),
        );
    };
    for (key, _) in entries {
        let known = keys::TASK.iter().find(|known| known.name == key.text);
        if known.is_some_and(|known| known.role != Role::Setting) {
            let message = format!("defaults cannot hold {:?}, which belongs to a single task", key.text);
            return cx.error(key.at, &field.key(&key.text), message);
        }
    }
    if let Some(mut fields) = Fields::open(cx, node, field, keys::TASK, "defaults") {
        read_settings(cx, &mut fields, field, base);
    }
}

/// Always gives a task, so that others may need it; what is wrong with it has been said.
pub fn read(cx: &mut Context<'_>, key: &Key, node: &Node, tasks: &Field<'_>, base: &TaskSpec) -> ReadTask {
    let field = tasks.key(&key.text);
    reading::check_id(cx, key.at, &field, "task", &key.text);
    let mut task = ReadTask { spec: base.clone(), needs_at: vec![] };
    task.spec.id = TaskId::new(&key.text);
    let what = format!("task {:?}", key.text);
    let Some(mut fields) = Fields::open(cx, node, &field, keys::TASK, &what) else { return task };

    let description = fields.get("description");
    task.spec.description = description.and_then(|node| reading::text(cx, node, &field.key("description")));
    if let Some(node) = fields.get("needs") {
        let field = field.key("needs");
        let items = reading::one_or_many(cx, node, &field).unwrap_or_default();
        let names = reading::each(cx, items, &field, reading::text).unwrap_or_default();
        task.needs_at = items.iter().take(names.len()).map(|item| item.at).collect();
        task.spec.needs = names.into_iter().map(TaskId::from).collect();
    }
    read_settings(cx, &mut fields, &field, &mut task.spec);
    if let Some(kind) = read_kind(cx, &mut fields, &field, key) {
        task.spec.kind = kind;
    }
    fields.done();
    task
}

fn read_kind(
    cx: &mut Context<'_>,
    fields: &mut Fields<'_>,
    field: &Field<'_>,
    task: &Key,
) -> Option<TaskKind> {
    let kinds: Vec<_> = keys::of_role(keys::TASK, Role::Kind).map(|kind| kind.name).collect();
    let given: Vec<_> = kinds.iter().filter_map(|kind| Some((*kind, fields.get(kind)?))).collect();
    let all = kinds.join(", ");
    match given.as_slice() {
        [(name, node)] => kind::read(cx, name, node, &field.key(name)),
        [] => {
            let message = format!("task {:?} has nothing to do: give it exactly one of {all}", task.text);
            cx.error(task.at, field, message);
            None
        }
        several => {
            let names: Vec<_> = several.iter().map(|(name, _)| *name).collect();
            let message =
                format!("task {:?} has {}; give it exactly one of {all}", task.text, names.join(" and "));
            cx.error(several[1].1.at, field, message);
            None
        }
    }
}

/// Lays what is written over what `task` already holds.
fn read_settings(cx: &mut Context<'_>, fields: &mut Fields<'_>, here: &Field<'_>, task: &mut TaskSpec) {
    /// `set!(retries = count, 0, MOST)`: the key, if it is written and can be read, as is or inside `Some`.
    macro_rules! set {
        ($key:ident = $reader:path $(, $argument:expr)*) => {
            let node = fields.get(stringify!($key));
            if let Some(value) = node.and_then(|node| $reader(cx, node, &here.key(stringify!($key)) $(, $argument)*)) {
                task.$key = value.into();
            }
        };
    }
    set!(trigger_rule = reading::choice, &TriggerRule::ALL.map(|rule| (rule.as_str(), rule)));
    set!(retries = reading::count, 0, MOST_RETRIES);
    set!(retry_delay = reading::duration);
    set!(retry_backoff = read_backoff);
    set!(max_retry_delay = reading::positive_duration);
    set!(timeout = reading::positive_duration);
    set!(grace = reading::duration);
    set!(pool = reading::name);
    set!(pool_slots = reading::count, 1, MOST_SLOTS);
    set!(priority = read_priority);
    set!(weight_rule = reading::choice, &weight_rules());
    set!(resources = read_resources);
    set!(node_selector = read_labels);
    set!(tolerations = placing::tolerations);
    set!(affinity = placing::affinity);
    set!(queue = placing::queue);
    set!(run_as = placing::user);
    set!(on_disconnect = reading::choice, &on_disconnect());
    set!(env = read_env);
    set!(depends_on_past = reading::flag);
    set!(wait_for_downstream = reading::flag);
    set!(max_active_per_dag = reading::count, 1, MOST_ACTIVE);
    set!(max_active_per_run = reading::count, 1, MOST_ACTIVE);
}

fn weight_rules() -> [(&'static str, WeightRule); 3] {
    let [downstream, upstream, absolute] = keys::WEIGHT_RULES;
    [(downstream, WeightRule::Downstream), (upstream, WeightRule::Upstream), (absolute, WeightRule::Absolute)]
}

fn on_disconnect() -> [(&'static str, OnDisconnect); 2] {
    let [go_on, stop] = keys::ON_DISCONNECT;
    [(go_on, OnDisconnect::Continue), (stop, OnDisconnect::Stop)]
}

/// `true` doubles, a number multiplies, `false` switches a default off.
fn read_backoff(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Option<f64>> {
    let number = match &node.data {
        Data::Scalar(scalar) => match scalar.kind {
            Kind::Bool(flag) => return Some(flag.then_some(2.0)),
            Kind::Int(number) => Some(number as f64),
            Kind::Float(number) => Some(number),
            Kind::Null | Kind::Text => None,
        },
        Data::List(_) | Data::Map(_) => None,
    };
    match number {
        Some(number) if number > 1.0 && number <= 100.0 => Some(Some(number)),
        _ => {
            let wanted = "true, false or a number above 1 and up to 100";
            cx.error(node.at, field, format!("{field} must be {wanted}, not {}", node.describe()));
            None
        }
    }
}

fn read_priority(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<i32> {
    let number = reading::whole(cx, node, field, -HIGHEST_PRIORITY, HIGHEST_PRIORITY)?;
    Some(i32::try_from(number).expect("the bounds of a priority fit"))
}

fn read_resources(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<Resources> {
    let mut resources = BTreeMap::new();
    for (key, node) in reading::map(cx, node, field)? {
        let (field, units) = (field.key(&key.text), Resources::units(&key.text));
        let amount = match key.text.as_str() {
            Resources::CPU => reading::amount(cx, node, &field, units, 100_000.0),
            Resources::MEMORY => reading::amount(cx, node, &field, units, 1e15),
            Resources::TASKS => {
                let message = format!("{field} cannot be set: every task takes one of them");
                cx.error(key.at, &field, message);
                None
            }
            _ => reading::amount(cx, node, &field, units, 1e12),
        };
        resources.extend(amount.map(|amount| (key.text.clone(), amount)));
    }
    Some(Resources(resources))
}

fn read_labels(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    for (key, node) in reading::map(cx, node, field)? {
        let label = reading::text(cx, node, &field.key(&key.text));
        labels.extend(label.map(|label| (key.text.clone(), label)));
    }
    Some(labels)
}

fn read_env(cx: &mut Context<'_>, node: &Node, field: &Field<'_>) -> Option<BTreeMap<String, EnvValue>> {
    let mut env = BTreeMap::new();
    for (key, node) in reading::map(cx, node, field)? {
        let field = field.key(&key.text);
        if !check_variable(cx, key, &field) {
            continue;
        }
        let value = match &node.data {
            Data::Map(_) => read_secret(cx, key, node, &field),
            _ => reading::template(cx, node, &field).map(EnvValue::Text),
        };
        env.extend(value.map(|value| (key.text.clone(), value)));
    }
    Some(env)
}

fn read_secret(cx: &mut Context<'_>, key: &Key, node: &Node, field: &Field<'_>) -> Option<EnvValue> {
    let what = format!("variable {:?}", key.text);
    let mut fields = Fields::open(cx, node, field, keys::SECRET, &what)?;
    let secret = fields.get("secret");
    fields.done();
    Some(EnvValue::Secret(reading::name(cx, secret?, &field.key("secret"))?))
}

fn check_variable(cx: &mut Context<'_>, key: &Key, field: &Field<'_>) -> bool {
    let well_formed = key.text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && key.text.starts_with(|c: char| !c.is_ascii_digit());
    let problem = if !well_formed {
        "is not the name of an environment variable (letters, digits and '_', not beginning with a digit)"
    } else if key.text.starts_with("TENURE_") {
        "is reserved: Tenure sets the variables that begin with TENURE_"
    } else {
        return true;
    };
    cx.error(key.at, field, format!("{:?} {problem}", key.text));
    false
}
