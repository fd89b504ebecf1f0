//! The files of a folder, modelled on the static data that a game publishes: a few are large, most are lookup tables.

use super::{
    file::File,
    line_writers::{self, LineWriter},
};

const fn with_fields(name: &'static str, lines: usize, fields: &'static str) -> File {
    File::with_fields(name, lines, fields)
}

const fn with_line_writer(name: &'static str, lines: usize, fields: &'static str, line_writer: LineWriter) -> File {
    File::with_line_writer(name, lines, fields, line_writer)
}

/// All files with their number of lines at scale 1.
pub(super) const FILES: [File; 57] = [
    with_line_writer("_sde", 1, line_writers::SDE, line_writers::sde),
    with_fields("agentTypes", 13, "name:str"),
    with_fields("agentsInSpace", 600, "dungeonID:int solarSystemID:int spawnPointID:int typeID:int"),
    with_fields(
        "ancestries",
        45,
        "bloodlineID:int charisma:int description:desc iconID:int? intelligence:int memory:int \
         name:name perception:int shortDescription:text? willpower:int",
    ),
    with_fields("bloodlines", 20, "charisma:int corporationID:int description:desc iconID:int? name:name raceID:int"),
    with_line_writer("blueprints", 20_000, line_writers::BLUEPRINTS, line_writers::blueprints),
    with_fields("categories", 50, "iconID:int? name:name published:bool"),
    with_fields("certificates", 150, "description:desc groupID:int name:name recommendedFor:ints skillTypes:kv"),
    with_fields("characterAttributes", 5, "description:text iconID:int name:name notes:text shortDescription:text"),
    with_fields("cloneGrades", 5, "name:str skills:kv"),
    with_fields("compressibleTypes", 500, "compressedTypeID:int"),
    with_fields("contrabandTypes", 150, "factions:kv"),
    with_fields("controlTowerResources", 50, "resources:kv"),
    with_fields("corporationActivities", 20, "name:name"),
    with_fields(
        "dbuffCollections",
        200,
        "aggregateMode:str developerDescription:text displayName:name? itemModifiers:mods \
         operationName:str showOutputValueInUI:str",
    ),
    with_fields("dogmaAttributeCategories", 40, "description:text? name:str"),
    with_fields(
        "dogmaAttributes",
        3_000,
        "attributeCategoryID:int? dataType:int defaultValue:real description:text? \
         displayName:name? highIsGood:bool iconID:int? name:str published:bool stackable:bool \
         unitID:int?",
    ),
    with_fields(
        "dogmaEffects",
        3_500,
        "disallowAutoRepeat:bool dischargeAttributeID:int? durationAttributeID:int? \
         effectCategoryID:int electronicChance:bool guid:str? isAssistance:bool isOffensive:bool \
         isWarpSafe:bool modifierInfo:mods name:str propulsionChance:bool published:bool \
         rangeChance:bool description:desc? displayName:name?",
    ),
    with_fields("dogmaUnits", 60, "description:name? displayName:name? name:str"),
    with_fields("dynamicItemAttributes", 300, "attributeIDs:kv inputOutputMapping:kv"),
    with_fields(
        "factions",
        30,
        "corporationID:int description:desc flatLogo:path? iconID:int memberRaces:ints name:name \
         shortDescription:desc? sizeFactor:real solarSystemID:int uniqueName:bool",
    ),
    with_fields("freelanceJobSchemas", 6, "_value:kv"),
    with_fields(
        "graphics",
        60_000,
        "graphicFile:path iconFolder:path? sofFactionName:str? sofHullName:str? sofRaceName:str?",
    ),
    with_fields(
        "groups",
        1_600,
        "anchorable:bool anchored:bool categoryID:int fittableNonSingleton:bool iconID:int? \
         name:name published:bool useBasePrice:bool",
    ),
    with_fields("icons", 25_000, "iconFile:path"),
    with_fields("landmarks", 60, "description:desc iconID:int? locationID:int? name:name position:pos"),
    with_line_writer("mapAsteroidBelts", 50_000, line_writers::CELESTIAL, line_writers::celestial),
    with_fields(
        "mapConstellations",
        1_200,
        "factionID:int? name:name position:pos regionID:int solarSystemIDs:ints \
         wormholeClassID:int?",
    ),
    with_line_writer("mapMoons", 400_000, line_writers::CELESTIAL, line_writers::celestial),
    with_line_writer("mapPlanets", 80_000, line_writers::CELESTIAL, line_writers::celestial),
    with_fields(
        "mapRegions",
        120,
        "constellationIDs:ints description:desc? factionID:int? name:name nebulaID:int \
         position:pos wormholeClassID:int?",
    ),
    with_line_writer("mapSolarSystems", 9_000, line_writers::SOLAR_SYSTEM, line_writers::solar_system),
    with_line_writer("mapStargates", 15_000, line_writers::GATE, line_writers::gate),
    with_fields("mapStars", 9_000, "radius:big solarSystemID:int statistics:map typeID:int"),
    with_fields("marketGroups", 2_000, "description:desc? hasTypes:bool iconID:int? name:name parentGroupID:int?"),
    with_fields("masteries", 500, "_value:kv"),
    with_fields(
        "mercenaryTacticalOperations",
        10,
        "anarchy_impact:int description:desc development_impact:int infomorph_bonus:int name:name",
    ),
    with_fields("metaGroups", 15, "color:map? iconID:int? iconSuffix:str? name:name"),
    with_fields(
        "npcCharacters",
        12_000,
        "bloodlineID:int? ceo:bool corporationID:int gender:bool locationID:int? name:name \
         raceID:int? startDate:str? uniqueName:bool",
    ),
    with_fields(
        "npcCorporationDivisions",
        10,
        "description:desc? displayName:str internalName:str leaderTypeName:name name:name",
    ),
    with_fields(
        "npcCorporations",
        300,
        "allowedMemberRaces:ints? ceoID:int? corporationTrades:kv deleted:bool description:desc \
         divisions:kv enemyID:int? exchangeRates:kv extent:str factionID:int? friendID:int? \
         hasPlayerPersonnelManager:bool iconID:int? initialPrice:int investors:kv \
         lpOfferTables:ints mainActivityID:int? memberLimit:int minSecurity:real \
         minimumJoinStanding:int name:name sendCharTerminationMessage:bool shares:big size:str \
         sizeFactor:real? solarSystemID:int? stationID:int? taxRate:real tickerName:str \
         uniqueName:bool",
    ),
    with_fields(
        "npcStations",
        5_200,
        "celestialIndex:int operationID:int orbitID:int orbitIndex:int? ownerID:int position:pos \
         reprocessingEfficiency:real reprocessingHangarFlag:int reprocessingStationsTake:real \
         solarSystemID:int typeID:int useOperationName:bool",
    ),
    with_fields("planetResources", 30_000, "power:int? reagent:map? workforce:int?"),
    with_fields("planetSchematics", 70, "cycleTime:int name:name pins:ints types:kv"),
    with_fields("races", 11, "description:desc? iconID:int? name:name shipTypeID:int? skills:kv"),
    with_fields("skinLicenses", 20_000, "duration:int licenseTypeID:int skinID:int"),
    with_fields("skinMaterials", 2_000, "displayName:name? materialSetID:int"),
    with_fields(
        "skins",
        20_000,
        "allowCCPDevs:bool internalName:str skinMaterialID:int types:ints visibleSerenity:bool \
         visibleTranquility:bool",
    ),
    with_fields(
        "sovereigntyUpgrades",
        60,
        "fuel:map? mutually_exclusive_group:str power_allocation:int? workforce_allocation:int?",
    ),
    with_fields(
        "stationOperations",
        60,
        "activityID:int border:real corridor:real description:desc? fringe:real hub:real \
         manufacturingFactor:real operationName:name ratio:real researchFactor:real services:ints \
         stationTypes:kv",
    ),
    with_fields("stationServices", 30, "description:desc? serviceName:name"),
    with_line_writer("translationLanguages", 8, line_writers::LANGUAGE, line_writers::language),
    with_fields("typeBonus", 5_000, "iconID:int? roleBonuses:mods types:kv miscBonuses:mods? bonusText:desc"),
    with_line_writer("typeDogma", 400_000, line_writers::DOGMA, line_writers::dogma),
    with_fields("typeLists", 300, "includedCategoryIDs:ints? includedGroupIDs:ints? includedTypeIDs:ints? name:str"),
    with_line_writer("typeMaterials", 30_000, line_writers::MATERIALS, line_writers::materials),
    with_line_writer("types", 500_000, line_writers::TYPES, line_writers::types),
];

/// Returns the schema for the floor: one line per table, its name and then `column:type`, separated by spaces.
pub(super) fn schema() -> String {
    let line = |file: &File| {
        let columns =
            file.columns().into_iter().map(|column| format!(" {}:{}", column.name, column.column_type.name()));
        format!("{}{}\n", file.name, columns.collect::<String>())
    };
    FILES.iter().map(line).collect()
}
