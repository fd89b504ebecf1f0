//! Prints medians and ratios as a Markdown table.

/// Measurements of one candidate in nanoseconds per task, by column.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) samples: Vec<Vec<f64>>,
}

pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Returns the median of the ratios of measurements made right after each other: the load of the machine affects both.
pub(crate) fn ratio(samples: &[f64], base: &[f64]) -> f64 {
    let pairs: Vec<f64> = samples.iter().zip(base).map(|(a, b)| a / b).collect();
    median(&pairs)
}

/// Prints a median for each row and column, and its ratio to the same column of the row `base`.
pub(crate) fn print(columns: &[&str], rows: &[Row], base: &str) {
    let reference = rows.iter().find(|row| row.name == base);
    let heads: Vec<String> = columns.iter().map(|column| format!(" {column} | × {base} |")).collect();
    println!("| ns per task |{}", heads.concat());
    println!("|---|{}", "---:|---:|".repeat(columns.len()));
    for row in rows {
        let cells = row.samples.iter().enumerate().map(|(column, samples)| {
            let ratio = reference.map_or(f64::NAN, |base| ratio(samples, &base.samples[column]));
            format!(" {:.0} | {ratio:.2} |", median(samples))
        });
        println!("| {} |{}", row.name, cells.collect::<String>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_ratio_use_the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(ratio(&[2.0, 30.0, 2.0], &[1.0, 10.0, 2.0]), 2.0);
    }
}
