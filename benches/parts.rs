//! Measures the time of each part of the hot path: `cargo bench --bench parts`.

use criterion::{Criterion, criterion_group, criterion_main};

mod cases;

fn parts(criterion: &mut Criterion) {
    for case in cases::cases() {
        let mut part = case.make();
        criterion.bench_function(&case.name, |bencher| bencher.iter(&mut part));
    }
}

criterion_group!(all, parts);
criterion_main!(all);
