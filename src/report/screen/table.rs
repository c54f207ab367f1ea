//! [`Table`]: names on the left, figures right-aligned below their heads. A column that does not fit is
//! left out: no figure is ever cut or broken.

use std::iter;

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::view::{DIM, TITLE};

pub(super) struct Table {
    /// What the table is about; above the names.
    title: String,
    columns: Vec<Column>,
    rows: Vec<(Cell, Vec<Cell>)>,
    /// Spaces between columns.
    gap: usize,
}

struct Column {
    head: &'static str,
    /// Minimum width, so that a growing figure does not move its neighbours.
    least: usize,
    /// The column with the highest rank is left out first.
    rank: u8,
}

/// A text and its style.
#[derive(Clone, Default)]
pub(super) struct Cell(String, Style);

impl Cell {
    pub(super) fn new(text: impl Into<String>) -> Cell {
        Cell(text.into(), Style::new())
    }

    pub(super) fn style(self, style: Style) -> Cell {
        Cell(self.0, style)
    }
}

/// A text, or a dash if it is unknown.
impl From<Option<String>> for Cell {
    fn from(text: Option<String>) -> Cell {
        text.map_or_else(|| Cell::new("–").style(DIM), Cell::new)
    }
}

impl Table {
    /// `columns` are heads with their minimum width and rank.
    pub(super) fn new(title: impl Into<String>, columns: &[(&'static str, usize, u8)]) -> Table {
        let column =
            |&(head, least, rank): &(&'static str, usize, u8)| Column { head, least, rank };
        let columns = columns.iter().map(column).collect();
        Table { title: title.into(), columns, rows: Vec::new(), gap: 2 }
    }

    pub(super) fn row<const CELLS: usize>(
        &mut self,
        name: impl Into<String>,
        cells: [Cell; CELLS],
    ) {
        self.row_of(Cell::new(name).style(DIM), cells);
    }

    pub(super) fn row_of<const CELLS: usize>(&mut self, name: Cell, cells: [Cell; CELLS]) {
        self.rows.push((name, cells.into()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn is_titled(&self, title: &str) -> bool {
        self.title == title
    }

    /// Rows with the heads.
    pub(super) fn height(&self) -> usize {
        self.rows.len() + 1
    }

    /// Leaves out all but the first rows.
    pub(super) fn truncate(&mut self, rows: usize) {
        self.rows.truncate(rows);
    }

    pub(super) fn width(&self) -> usize {
        let columns = (0..self.columns.len()).map(|at| self.gap + self.column_width(at));
        self.name_width() + columns.sum::<usize>()
    }

    /// Makes it fit: first with smaller gaps, then without the columns of the highest rank.
    pub(super) fn fit(mut self, width: usize) -> Table {
        if self.width() > width {
            self.gap = 1;
            self.columns.iter_mut().for_each(|column| column.least = 0);
        }
        while self.width() > width {
            let ranked = self.columns.iter().enumerate();
            let Some((last, _)) = ranked.max_by_key(|(_, column)| column.rank) else { break };
            self.columns.remove(last);
            for (_, cells) in &mut self.rows {
                if last < cells.len() {
                    cells.remove(last);
                }
            }
        }
        self
    }

    pub(super) fn lines(&self) -> Vec<Line<'static>> {
        let heads = self.columns.iter().map(|column| Cell::new(column.head).style(DIM)).collect();
        let head = (Cell::new(self.title.clone()).style(TITLE), heads);
        iter::once(&head).chain(&self.rows).map(|row| self.line(row)).collect()
    }

    fn line(&self, (name, cells): &(Cell, Vec<Cell>)) -> Line<'static> {
        let width = self.name_width();
        let mut line = Line::from(Span::styled(format!("{:width$}", name.0), name.1));
        for (at, Cell(text, style)) in cells.iter().enumerate() {
            let pad = (self.gap + self.column_width(at)).saturating_sub(count(text));
            line.push_span(Span::raw(" ".repeat(pad)));
            line.push_span(Span::styled(text.clone(), *style));
        }
        line
    }

    fn name_width(&self) -> usize {
        let names = self.rows.iter().map(|(name, _)| count(&name.0));
        names.chain([count(&self.title)]).max().unwrap_or(0)
    }

    fn column_width(&self, at: usize) -> usize {
        let Some(column) = self.columns.get(at) else { return 0 };
        let cells = self.rows.iter().filter_map(|(_, cells)| cells.get(at));
        let widest = cells.map(|cell| count(&cell.0)).max().unwrap_or(0);
        widest.max(column.least).max(count(column.head))
    }
}

/// Tables next to each other, as many as fit, and those that do not.
pub(super) fn beside(tables: Vec<Table>, width: usize) -> (Vec<Line<'static>>, Vec<Table>) {
    /// Columns between two tables.
    const BETWEEN: usize = 3;
    let mut tables = tables.into_iter();
    let Some(first) = tables.next().map(|table| table.fit(width)) else {
        return (Vec::new(), Vec::new());
    };
    let (mut lines, mut used) = (first.lines(), first.width());
    let mut rest = Vec::new();
    for mut table in tables {
        if used + BETWEEN + table.width() > width || !rest.is_empty() {
            rest.push(table);
            continue;
        }
        table.truncate(first.height() - 1);
        for (at, next) in table.lines().into_iter().enumerate() {
            if at >= lines.len() {
                lines.push(Line::default());
            }
            let Some(line) = lines.get_mut(at) else { break };
            line.push_span(Span::raw(" ".repeat(used + BETWEEN - line.width())));
            line.extend(next.spans);
        }
        used += BETWEEN + table.width();
    }
    (lines, rest)
}

pub(super) fn count(text: &str) -> usize {
    text.chars().count()
}
