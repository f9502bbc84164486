//! A listing's filter, order and page, put together as SQL. Values are always bound, never written into it.

use jiff::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use tenure_store::{Page, Paging};

use crate::errors::Fail;
use crate::rows::{Cells, all};

/// Conditions that all hold, with their values.
#[derive(Debug, Default)]
pub(super) struct Filter {
    conditions: Vec<String>,
    values: Vec<Value>,
}

impl Filter {
    /// `condition` has one `?`.
    pub(super) fn and(&mut self, condition: &str, value: impl Into<Value>) {
        self.conditions.push(condition.to_owned());
        self.values.push(value.into());
    }

    pub(super) fn and_if(&mut self, condition: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.and(condition, value);
        }
    }

    pub(super) fn and_instant(&mut self, condition: &str, instant: Option<Timestamp>) {
        self.and_if(condition, instant.map(Timestamp::as_microsecond));
    }

    /// Any of the values; no values means no condition. `condition` has `{}` where the list goes.
    pub(super) fn and_any<T: Into<Value>>(&mut self, condition: &str, values: impl IntoIterator<Item = T>) {
        let before = self.values.len();
        self.values.extend(values.into_iter().map(Into::into));
        let count = self.values.len() - before;
        if count > 0 {
            self.conditions.push(condition.replace("{}", &vec!["?"; count].join(", ")));
        }
    }

    fn clause(&self) -> String {
        if self.conditions.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", self.conditions.join(" AND "))
        }
    }
}

/// What a listing may be ordered by, and what breaks ties so that pages never overlap.
pub(super) struct Order {
    /// Name in the API, column (or columns) in SQL.
    pub(super) names: &'static [(&'static str, &'static str)],
    pub(super) default: &'static str,
    /// The natural key.
    pub(super) tie: &'static str,
}

impl Order {
    fn clause(&self, paging: &Paging) -> Result<String, Fail> {
        let asked = paging.order_by.as_deref().unwrap_or(self.default);
        let (name, direction) = asked.strip_prefix('-').map_or((asked, "ASC"), |name| (name, "DESC"));
        let Some((_, column)) = self.names.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = self.names.iter().map(|(known, _)| *known).collect();
            return Err(Fail::conflict(format!("cannot order by {name:?}; known are {}", known.join(", "))));
        };
        let tie: Vec<String> = self.tie.split(", ").map(|column| format!("{column} ASC")).collect();
        let columns: Vec<String> = column.split(", ").map(|column| format!("{column} {direction}")).collect();
        Ok(format!(" ORDER BY {}, {}", columns.join(", "), tie.join(", ")))
    }
}

/// One page of `select columns from tables`, and how many rows match in all.
pub(super) fn page<T>(
    conn: &Connection,
    columns: &str,
    tables: &str,
    filter: Filter,
    order: &Order,
    paging: &Paging,
    read: impl Fn(&mut Cells<'_>) -> Result<T, Fail>,
) -> Result<Page<T>, Fail> {
    let (clause, order) = (filter.clause(), order.clause(paging)?);
    let count = format!("SELECT count(*) FROM {tables}{clause}");
    let total: i64 =
        conn.prepare_cached(&count)?.query_row(params_from_iter(&filter.values), |row| row.get(0))?;
    let mut values = filter.values;
    values.extend([Value::from(paging.limit), Value::from(paging.offset)]);
    let select = format!("SELECT {columns} FROM {tables}{clause}{order} LIMIT ? OFFSET ?");
    let items = all(&mut conn.prepare_cached(&select)?, params_from_iter(&values), read)?;
    Ok(Page { items, total: total as u64 })
}

pub(super) fn text(value: impl AsRef<str>) -> String {
    value.as_ref().to_owned()
}
