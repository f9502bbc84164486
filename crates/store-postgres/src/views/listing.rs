//! A listing under construction: conditions with their values, an order from a fixed list, a page.
//! Values travel as parameters; the only texts that enter the SQL are those written in this crate.

use futures::try_join;
use jiff::Timestamp;
use tenure_store::{Page, Paging, StoreError};
use tokio_postgres::types::{ToSql, Type};

use crate::PostgresStore;
use crate::rows::{self, Cells};
use crate::session::{CLOSE, SURVEY, Session};

pub(super) struct Listing {
    columns: &'static str,
    from: &'static str,
    conditions: Vec<String>,
    values: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
    order: String,
    limit: u32,
    offset: u32,
}

impl Listing {
    pub(super) fn new(columns: &'static str, from: &'static str) -> Self {
        let (conditions, values, order) = Default::default();
        Self { columns, from, conditions, values, order, limit: 0, offset: 0 }
    }

    pub(super) fn equal(
        &mut self,
        column: &'static str,
        value: impl ToSql + Sync + Send + 'static,
        of: Type,
    ) {
        self.compare(column, "=", value, of);
    }

    pub(super) fn compare(
        &mut self,
        column: &'static str,
        operator: &'static str,
        value: impl ToSql + Sync + Send + 'static,
        of: Type,
    ) {
        self.values.push((Box::new(value), of));
        self.conditions.push(format!("{column} {operator} ${}", self.values.len()));
    }

    /// No filter when there is nothing to choose from.
    pub(super) fn any_of<T: ToString>(&mut self, column: &'static str, values: &[T]) {
        if !values.is_empty() {
            let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
            self.values.push((Box::new(texts), Type::TEXT_ARRAY));
            self.conditions.push(format!("{column} = ANY(${})", self.values.len()));
        }
    }

    /// `%` is any text, `_` any character, nothing else is special; case does not count.
    pub(super) fn like(&mut self, column: &'static str, pattern: Option<&str>) {
        if let Some(pattern) = pattern {
            self.values.push((Box::new(pattern.to_owned()), Type::TEXT));
            self.conditions.push(format!("{column} ILIKE ${} ESCAPE ''", self.values.len()));
        }
    }

    pub(super) fn between(&mut self, column: &'static str, from: Option<Timestamp>, to: Option<Timestamp>) {
        if let Some(from) = from {
            self.compare(column, ">=", from, Type::TIMESTAMPTZ);
        }
        if let Some(to) = to {
            self.compare(column, "<=", to, Type::TIMESTAMPTZ);
        }
    }

    /// By one of the `known` names (the first one unless the caller chooses), then by the natural key.
    /// What is absent comes before what is there.
    pub(super) fn order(
        &mut self,
        paging: &Paging,
        known: &[(&str, &[&'static str])],
        natural_key: &[&'static str],
    ) -> Result<(), StoreError> {
        let asked = paging.order_by.as_deref().unwrap_or(known[0].0);
        let (name, direction) = match asked.strip_prefix('-') {
            Some(name) => (name, "DESC NULLS LAST"),
            None => (asked, "ASC NULLS FIRST"),
        };
        let Some((_, columns)) = known.iter().find(|(known, _)| *known == name) else {
            let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            return Err(StoreError::Conflict(format!("cannot order by {name:?}; possible are {names}")));
        };
        let chosen = columns.iter().map(|column| format!("{column} {direction}"));
        let tie =
            natural_key.iter().filter(|column| !columns.contains(column)).map(|column| column.to_string());
        self.order = chosen.chain(tie).collect::<Vec<_>>().join(", ");
        (self.limit, self.offset) = (paging.limit, paging.offset);
        Ok(())
    }

    fn source(&self) -> String {
        format!("FROM {} WHERE {}", self.from, self.conditions.join(" AND "))
    }

    fn page_sql(&self) -> String {
        let Self { columns, order, limit, offset, .. } = self;
        format!("SELECT {columns} {} ORDER BY {order} LIMIT {limit} OFFSET {offset}", self.source())
    }

    fn total_sql(&self) -> String {
        format!("SELECT count(*) {}", self.source())
    }
}

impl PostgresStore {
    pub(super) async fn page<T>(
        &self,
        doing: &'static str,
        listing: Listing,
        read: impl Fn(&mut Cells<'_>) -> Result<T, StoreError>,
    ) -> Result<Page<T>, StoreError> {
        let session = Session::borrow(&self.pool, doing).await?;
        let page = page(&session, &listing, read).await?;
        session.give_back();
        Ok(page)
    }
}

async fn page<T>(
    session: &Session,
    listing: &Listing,
    read: impl Fn(&mut Cells<'_>) -> Result<T, StoreError>,
) -> Result<Page<T>, StoreError> {
    let values: Vec<(&(dyn ToSql + Sync), Type)> =
        listing.values.iter().map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone())).collect();
    let (page_sql, total_sql) = (listing.page_sql(), listing.total_sql());
    let (_, items, total, _) = try_join!(
        session.batch(SURVEY),
        session.rows_once(&page_sql, &values),
        session.rows_once(&total_sql, &values),
        session.batch(CLOSE),
    )?;
    let total: i64 = Cells::of(&total[0]).take()?;
    Ok(Page { items: rows::all(&items, read)?, total: total as u64 })
}
