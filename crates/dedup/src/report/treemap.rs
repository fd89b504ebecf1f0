//! Divides a rectangle into areas that are close to squares (Bruls, Huizing, van Wijk: "Squarified treemaps").
//!
//! Owns the layout; drawing is in `svg`.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    /// Returns the rectangle without a border, which is `top` wide at the top.
    pub(super) fn inside(self, border: f64, top: f64) -> Rect {
        Rect {
            x: self.x + border,
            y: self.y + top,
            width: (self.width - 2.0 * border).max(0.0),
            height: (self.height - top - border).max(0.0),
        }
    }
}

/// Divides a rectangle by weights, which are sorted with the largest first. The areas are proportional to the weights.
pub(super) fn squarify(weights: &[u64], within: Rect) -> Vec<Rect> {
    let total: f64 = weights.iter().map(|&weight| weight as f64).sum();
    let scale = if total > 0.0 { within.width * within.height / total } else { 0.0 };
    let areas: Vec<f64> = weights.iter().map(|&weight| weight as f64 * scale).collect();
    let mut rects = Vec::with_capacity(areas.len());
    let mut left = within;
    while rects.len() < areas.len() {
        let rest = &areas[rects.len()..];
        let side = left.width.min(left.height);
        // A row grows while its worst aspect ratio does not get worse.
        let mut row = 1;
        while row < rest.len() && worst(&rest[..=row], side) <= worst(&rest[..row], side) {
            row += 1;
        }
        left = lay_row(&rest[..row], left, &mut rects);
    }
    rects
}

/// Worst aspect ratio in a row along `side`.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let (max, min) = (row.iter().copied().fold(0.0, f64::max), row.iter().copied().fold(f64::MAX, f64::min));
    if sum <= 0.0 || min <= 0.0 || side <= 0.0 {
        return f64::MAX;
    }
    (side * side * max / (sum * sum)).max(sum * sum / (side * side * min))
}

/// Lays a row along the shorter side. Returns the rest of the rectangle.
fn lay_row(row: &[f64], within: Rect, rects: &mut Vec<Rect>) -> Rect {
    let sum: f64 = row.iter().sum();
    let upright = within.width >= within.height;
    let (side, depth) = if upright { (within.height, within.width) } else { (within.width, within.height) };
    let thickness = if side > 0.0 { (sum / side).min(depth) } else { 0.0 };
    let mut at = 0.0;
    for area in row {
        let length = if sum > 0.0 { side * area / sum } else { 0.0 };
        rects.push(if upright {
            Rect { x: within.x, y: within.y + at, width: thickness, height: length }
        } else {
            Rect { x: within.x + at, y: within.y, width: length, height: thickness }
        });
        at += length;
    }
    if upright {
        Rect { x: within.x + thickness, width: within.width - thickness, ..within }
    } else {
        Rect { y: within.y + thickness, height: within.height - thickness, ..within }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout_matches_the_example_of_the_paper() {
        let rects = squarify(&[6, 6, 4, 3, 2, 2, 1], Rect { x: 0.0, y: 0.0, width: 6.0, height: 4.0 });
        assert_eq!(rects[..2].iter().map(|r| (r.width, r.height)).collect::<Vec<_>>(), [(3.0, 2.0), (3.0, 2.0)]);
        assert!(rects.iter().all(|r| (r.width / r.height).max(r.height / r.width) < 3.0));
    }

    proptest! {
        #[test]
        fn areas_are_proportional_and_do_not_overlap(mut weights in prop::collection::vec(0u64..1_000_000, 0..40)) {
            weights.sort_unstable_by(|a, b| b.cmp(a));
            let within = Rect { x: 5.0, y: 7.0, width: 300.0, height: 200.0 };
            let rects = squarify(&weights, within);
            prop_assert_eq!(rects.len(), weights.len());
            let total: u64 = weights.iter().sum();
            for (at, (rect, weight)) in rects.iter().zip(&weights).enumerate() {
                let share = *weight as f64 / total.max(1) as f64 * within.width * within.height;
                prop_assert!((rect.width * rect.height - share).abs() < 0.01);
                prop_assert!(rect.x >= 5.0 - 1e-6 && rect.x + rect.width <= 305.0 + 1e-6);
                prop_assert!(rect.y >= 7.0 - 1e-6 && rect.y + rect.height <= 207.0 + 1e-6);
                for other in &rects[..at] {
                    let wide = (rect.x + rect.width).min(other.x + other.width) - rect.x.max(other.x);
                    let high = (rect.y + rect.height).min(other.y + other.height) - rect.y.max(other.y);
                    prop_assert!(wide < 1e-6 || high < 1e-6 || wide * high < 1e-6);
                }
            }
        }
    }
}
