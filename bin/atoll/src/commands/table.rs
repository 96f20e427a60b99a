//! Lays out what commands print in columns.

use comfy_table::{CellAlignment, Table, presets};

/// Returns a line for each row, without a line feed. Columns are `gap` spaces apart and aligned to the left,
/// those with the numbers in `right` to the right.
pub fn lines<R: IntoIterator<Item: Into<String>>>(
    rows: impl IntoIterator<Item = R>,
    gap: u16,
    right: &[usize],
) -> Vec<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    for row in rows {
        // A cell with a line feed would take two lines.
        table.add_row(row.into_iter().map(|cell| cell.into().replace('\n', "?")).collect::<Vec<_>>());
    }
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, gap));
        if right.contains(&number) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cells() {
        let rows = [["A", "LONG", "N"], ["wide", "x", "10"], ["", "\n", "1"]];
        assert_eq!(lines(rows, 2, &[]), ["A     LONG  N", "wide  x     10", "      ?     1"]);
        assert_eq!(lines(rows, 1, &[0, 2]), ["   A LONG  N", "wide x    10", "     ?     1"]);
        assert!(lines(Vec::<Vec<String>>::new(), 2, &[]).is_empty());
    }
}
