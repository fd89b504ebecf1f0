//! Writes lines of tables whose fields or lines depend on each other.
//!
//! These tables mislead importers that infer a column's type from the first lines; see `types`.

use std::io::Write;

use super::{
    field::{Line, put},
    phrases::{ENGLISH, LANGUAGES},
};

/// Writes line `nth` of `count`.
pub(super) type LineWriter = fn(line: &mut Line<'_>, nth: usize, count: usize);

/// `radius` is an integer in the first tenth and real afterwards; `sofMaterialSetID` first occurs in the last
/// hundredth; `basePrice` is missing, null, an integer or real.
pub(super) fn types(line: &mut Line<'_>, nth: usize, count: usize) {
    put!(line, "{{\"_key\":{nth}");
    match line.random.f64() {
        0.0..0.4 => put!(line, ",\"basePrice\":{}", line.real(9)),
        0.4..0.6 => put!(line, ",\"basePrice\":{}", line.number(0, 1_000_000_000)),
        0.6..0.7 => put!(line, ",\"basePrice\":null"),
        _ => {}
    }
    if line.chance(0.5) {
        put!(line, ",\"capacity\":{}", line.real(6));
    }
    if line.chance(0.85) {
        put!(line, ",\"description\":");
        line.description();
    }
    maybe_integer(line, 0.2, "factionID", 500_001, 500_030);
    maybe_integer(line, 0.8, "graphicID", 1, 30_000);
    maybe_integer(line, 1.0, "groupID", 1, 1_600);
    maybe_integer(line, 0.6, "iconID", 1, 25_000);
    maybe_integer(line, 0.6, "marketGroupID", 1, 2_000);
    put!(line, ",\"mass\":{}", line.real(12));
    maybe_integer(line, 0.3, "metaGroupID", 1, 60);
    put!(line, ",\"name\":");
    line.name();
    maybe_integer(line, 1.0, "portionSize", 1, 1_000);
    put!(line, ",\"published\":{}", line.chance(0.4));
    if line.chance(0.3) {
        put!(line, ",\"raceID\":{}", 1 << line.number(0, 8));
    }
    if nth < count / 10 {
        put!(line, ",\"radius\":{}", line.number(1, 100_000));
    } else {
        put!(line, ",\"radius\":{}", line.real(5));
    }
    maybe_integer(line, 0.1, "soundID", 20_000_000, 20_100_000);
    if nth > count - count / 100 {
        maybe_integer(line, 0.5, "sofMaterialSetID", 1, 900);
    }
    maybe_integer(line, 0.2, "variationParentTypeID", 1, 500_000);
    put!(line, ",\"volume\":{}}}", line.real(7));
}

/// Writes an integer with this probability.
fn maybe_integer(line: &mut Line<'_>, probability: f64, name: &str, start: usize, end: usize) {
    if line.chance(probability) {
        put!(line, ",\"{name}\":{}", line.number(start, end));
    }
}

pub(super) fn dogma(line: &mut Line<'_>, nth: usize, _: usize) {
    put!(line, "{{\"_key\":{nth},\"dogmaAttributes\":");
    let attributes = line.number(2, 26);
    line.array(attributes, |line, _| {
        let (attribute, value) = (line.number(1, 3_000), line.real(6));
        put!(line, "{{\"attributeID\":{attribute},\"value\":{value}}}");
    });
    if line.chance(0.6) {
        put!(line, ",\"dogmaEffects\":");
        let effects = line.number(1, 7);
        line.array(effects, |line, _| {
            let (effect, default) = (line.number(1, 9_000), line.chance(0.2));
            put!(line, "{{\"effectID\":{effect},\"isDefault\":{default}}}");
        });
    }
    put!(line, "}}");
}

pub(super) fn blueprints(line: &mut Line<'_>, nth: usize, _: usize) {
    put!(line, "{{\"_key\":{nth},\"activities\":{{\"copying\":{{\"time\":{}}}", line.number(10, 1_000_000));
    if line.chance(0.3) {
        put!(line, ",\"invention\":{{\"materials\":");
        amounts(line, 2);
        let (probability, product) = (line.number(0, 1_000) as f64 / 1_000.0, line.number(1, 500_000));
        put!(line, ",\"products\":[{{\"probability\":{probability:?},\"quantity\":1,\"typeID\":{product}}}]");
        put!(line, ",\"skills\":");
        skills(line, 3);
        put!(line, ",\"time\":{}}}", line.number(10, 1_000_000));
    }
    put!(line, ",\"manufacturing\":{{\"materials\":");
    let materials = line.number(1, 14);
    amounts(line, materials);
    let (quantity, product) = (line.number(1, 100), line.number(1, 500_000));
    put!(line, ",\"products\":[{{\"quantity\":{quantity},\"typeID\":{product}}}],\"skills\":");
    let skill_count = line.number(0, 6);
    skills(line, skill_count);
    let [time, material, research] = [(); 3].map(|()| line.number(10, 1_000_000));
    put!(line, ",\"time\":{time}}},\"research_material\":{{\"time\":{material}}}");
    put!(line, ",\"research_time\":{{\"time\":{research}}}}},\"blueprintTypeID\":{nth}");
    put!(line, ",\"maxProductionLimit\":{}}}", line.number(1, 3_000));
}

fn amounts(line: &mut Line<'_>, count: usize) {
    line.array(count, |line, _| {
        let (quantity, material) = (line.number(1, 100_000), line.number(1, 500_000));
        put!(line, "{{\"quantity\":{quantity},\"typeID\":{material}}}");
    });
}

fn skills(line: &mut Line<'_>, count: usize) {
    line.array(count, |line, _| {
        let (level, skill) = (line.number(1, 6), line.number(3_000, 4_000));
        put!(line, "{{\"level\":{level},\"typeID\":{skill}}}");
    });
}

pub(super) fn materials(line: &mut Line<'_>, nth: usize, _: usize) {
    put!(line, "{{\"_key\":{nth},\"materials\":");
    let count = line.number(1, 9);
    line.array(count, |line, _| {
        let (material, quantity) = (line.number(1, 500_000), line.number(1, 10_000_000));
        put!(line, "{{\"materialTypeID\":{material},\"quantity\":{quantity}}}");
    });
    put!(line, "}}");
}

const STATISTICS: [&str; 11] = [
    "density",
    "eccentricity",
    "escapeVelocity",
    "massDust",
    "massGas",
    "orbitPeriod",
    "orbitRadius",
    "pressure",
    "rotationRate",
    "surfaceGravity",
    "temperature",
];

pub(super) fn celestial(line: &mut Line<'_>, nth: usize, _: usize) {
    let [first, second] = [(); 2].map(|()| line.number(1, 9_999));
    put!(line, "{{\"_key\":{},\"attributes\":{{\"heightMap1\":{first}", 40_000_000 + nth);
    put!(line, ",\"heightMap2\":{second},\"shaderPreset\":{}}}", line.number(1, 99));
    let (index, orbit) = (line.number(1, 20), line.number(40_000_000, 41_000_000));
    put!(line, ",\"celestialIndex\":{index},\"orbitID\":{orbit},\"orbitIndex\":{}", line.number(1, 30));
    put!(line, ",\"position\":");
    line.position(13);
    put!(line, ",\"radius\":{}", line.number(1_000, 100_000_000));
    put!(line, ",\"solarSystemID\":{},\"statistics\":{{", line.number(30_000_000, 30_009_000));
    for name in STATISTICS {
        put!(line, "\"{name}\":{},", line.real(9));
    }
    put!(line, "\"locked\":{}}},\"typeID\":{}", line.chance(0.1), line.number(1, 5_000));
    if line.chance(0.02) {
        put!(line, ",\"uniqueName\":");
        line.name();
    }
    put!(line, "}}");
}

pub(super) fn solar_system(line: &mut Line<'_>, nth: usize, _: usize) {
    put!(line, "{{\"_key\":{},\"border\":{}", 30_000_000 + nth, line.chance(0.5));
    put!(line, ",\"constellationID\":{}", line.number(20_000_000, 20_001_200));
    put!(line, ",\"hub\":{},\"luminosity\":{},\"name\":", line.chance(0.5), line.real(3));
    line.name();
    put!(line, ",\"planetIDs\":");
    let planets = line.number(1, 14);
    line.array(planets, |line, _| put!(line, "{}", line.number(40_000_000, 41_000_000)));
    put!(line, ",\"position\":");
    line.position(18);
    let [x, y] = [(); 2].map(|()| line.real(18));
    put!(line, ",\"position2D\":{{\"x\":{x},\"y\":{y}}},\"radius\":{}", line.real(14));
    if line.chance(0.5) {
        put!(line, ",\"securityClass\":\"{}\"", line.random.char('A'..='G'));
    }
    let security = line.number(0, 20_000) as f64 / 10_000.0 - 1.0;
    put!(line, ",\"securityStatus\":{security:?},\"starID\":{},\"stargateIDs\":", 40_000_000 + nth);
    let gates = line.number(1, 8);
    line.array(gates, |line, _| put!(line, "{}", line.number(50_000_000, 50_015_000)));
    put!(line, ",\"regionID\":{}}}", line.number(10_000_000, 10_000_120));
}

pub(super) fn gate(line: &mut Line<'_>, nth: usize, count: usize) {
    let (system, other) = (line.number(30_000_000, 30_009_000), 50_000_000 + line.number(0, count));
    put!(line, "{{\"_key\":{},\"destination\":{{\"solarSystemID\":{system}", 50_000_000 + nth);
    put!(line, ",\"stargateID\":{other}}},\"position\":");
    line.position(13);
    put!(line, ",\"solarSystemID\":{}", line.number(30_000_000, 30_009_000));
    put!(line, ",\"typeID\":{}}}", line.number(1, 5_000));
}

/// Its key is text, as in `_sde`; in all other tables it is an integer.
pub(super) fn language(line: &mut Line<'_>, nth: usize, _: usize) {
    let name = line.pools.name(ENGLISH, line.random);
    put!(line, "{{\"_key\":\"{}\",\"name\":\"{name}\"}}", LANGUAGES[nth % LANGUAGES.len()].code);
}

pub(super) fn sde(line: &mut Line<'_>, _: usize, _: usize) {
    put!(line, "{{\"_key\":\"sde\",\"buildNumber\":3064089,\"releaseDate\":\"2025-10-17T11:15:13Z\"}}");
}
