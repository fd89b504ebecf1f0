//! The files of a folder, after the static data that a game publishes: a few are large, most are lookup tables.

use super::{
    file::File,
    shape::{self, Shape},
};

const fn of_fields(name: &'static str, lines: usize, fields: &'static str) -> File {
    File::of_fields(name, lines, fields)
}

const fn of_shape(name: &'static str, lines: usize, fields: &'static str, shape: Shape) -> File {
    File::of_shape(name, lines, fields, shape)
}

/// With their lengths at scale 1.
pub(super) const FILES: [File; 57] = [
    of_shape("_sde", 1, shape::SDE, shape::sde),
    of_fields("agentTypes", 13, "name:str"),
    of_fields("agentsInSpace", 600, "dungeonID:int solarSystemID:int spawnPointID:int typeID:int"),
    of_fields(
        "ancestries",
        45,
        "bloodlineID:int charisma:int description:desc iconID:int? intelligence:int memory:int \
         name:name perception:int shortDescription:text? willpower:int",
    ),
    of_fields(
        "bloodlines",
        20,
        "charisma:int corporationID:int description:desc iconID:int? name:name raceID:int",
    ),
    of_shape("blueprints", 20_000, shape::BLUEPRINTS, shape::blueprints),
    of_fields("categories", 50, "iconID:int? name:name published:bool"),
    of_fields(
        "certificates",
        150,
        "description:desc groupID:int name:name recommendedFor:ints skillTypes:kv",
    ),
    of_fields(
        "characterAttributes",
        5,
        "description:text iconID:int name:name notes:text shortDescription:text",
    ),
    of_fields("cloneGrades", 5, "name:str skills:kv"),
    of_fields("compressibleTypes", 500, "compressedTypeID:int"),
    of_fields("contrabandTypes", 150, "factions:kv"),
    of_fields("controlTowerResources", 50, "resources:kv"),
    of_fields("corporationActivities", 20, "name:name"),
    of_fields(
        "dbuffCollections",
        200,
        "aggregateMode:str developerDescription:text displayName:name? itemModifiers:mods \
         operationName:str showOutputValueInUI:str",
    ),
    of_fields("dogmaAttributeCategories", 40, "description:text? name:str"),
    of_fields(
        "dogmaAttributes",
        3_000,
        "attributeCategoryID:int? dataType:int defaultValue:real description:text? \
         displayName:name? highIsGood:bool iconID:int? name:str published:bool stackable:bool \
         unitID:int?",
    ),
    of_fields(
        "dogmaEffects",
        3_500,
        "disallowAutoRepeat:bool dischargeAttributeID:int? durationAttributeID:int? \
         effectCategoryID:int electronicChance:bool guid:str? isAssistance:bool isOffensive:bool \
         isWarpSafe:bool modifierInfo:mods name:str propulsionChance:bool published:bool \
         rangeChance:bool description:desc? displayName:name?",
    ),
    of_fields("dogmaUnits", 60, "description:name? displayName:name? name:str"),
    of_fields("dynamicItemAttributes", 300, "attributeIDs:kv inputOutputMapping:kv"),
    of_fields(
        "factions",
        30,
        "corporationID:int description:desc flatLogo:path? iconID:int memberRaces:ints name:name \
         shortDescription:desc? sizeFactor:real solarSystemID:int uniqueName:bool",
    ),
    of_fields("freelanceJobSchemas", 6, "_value:kv"),
    of_fields(
        "graphics",
        60_000,
        "graphicFile:path iconFolder:path? sofFactionName:str? sofHullName:str? sofRaceName:str?",
    ),
    of_fields(
        "groups",
        1_600,
        "anchorable:bool anchored:bool categoryID:int fittableNonSingleton:bool iconID:int? \
         name:name published:bool useBasePrice:bool",
    ),
    of_fields("icons", 25_000, "iconFile:path"),
    of_fields("landmarks", 60, "description:desc iconID:int? locationID:int? name:name position:pos"),
    of_shape("mapAsteroidBelts", 50_000, shape::CELESTIAL, shape::celestial),
    of_fields(
        "mapConstellations",
        1_200,
        "factionID:int? name:name position:pos regionID:int solarSystemIDs:ints \
         wormholeClassID:int?",
    ),
    of_shape("mapMoons", 400_000, shape::CELESTIAL, shape::celestial),
    of_shape("mapPlanets", 80_000, shape::CELESTIAL, shape::celestial),
    of_fields(
        "mapRegions",
        120,
        "constellationIDs:ints description:desc? factionID:int? name:name nebulaID:int \
         position:pos wormholeClassID:int?",
    ),
    of_shape("mapSolarSystems", 9_000, shape::SOLAR_SYSTEM, shape::solar_system),
    of_shape("mapStargates", 15_000, shape::GATE, shape::gate),
    of_fields("mapStars", 9_000, "radius:big solarSystemID:int statistics:map typeID:int"),
    of_fields(
        "marketGroups",
        2_000,
        "description:desc? hasTypes:bool iconID:int? name:name parentGroupID:int?",
    ),
    of_fields("masteries", 500, "_value:kv"),
    of_fields(
        "mercenaryTacticalOperations",
        10,
        "anarchy_impact:int description:desc development_impact:int infomorph_bonus:int name:name",
    ),
    of_fields("metaGroups", 15, "color:map? iconID:int? iconSuffix:str? name:name"),
    of_fields(
        "npcCharacters",
        12_000,
        "bloodlineID:int? ceo:bool corporationID:int gender:bool locationID:int? name:name \
         raceID:int? startDate:str? uniqueName:bool",
    ),
    of_fields(
        "npcCorporationDivisions",
        10,
        "description:desc? displayName:str internalName:str leaderTypeName:name name:name",
    ),
    of_fields(
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
    of_fields(
        "npcStations",
        5_200,
        "celestialIndex:int operationID:int orbitID:int orbitIndex:int? ownerID:int position:pos \
         reprocessingEfficiency:real reprocessingHangarFlag:int reprocessingStationsTake:real \
         solarSystemID:int typeID:int useOperationName:bool",
    ),
    of_fields("planetResources", 30_000, "power:int? reagent:map? workforce:int?"),
    of_fields("planetSchematics", 70, "cycleTime:int name:name pins:ints types:kv"),
    of_fields("races", 11, "description:desc? iconID:int? name:name shipTypeID:int? skills:kv"),
    of_fields("skinLicenses", 20_000, "duration:int licenseTypeID:int skinID:int"),
    of_fields("skinMaterials", 2_000, "displayName:name? materialSetID:int"),
    of_fields(
        "skins",
        20_000,
        "allowCCPDevs:bool internalName:str skinMaterialID:int types:ints visibleSerenity:bool \
         visibleTranquility:bool",
    ),
    of_fields(
        "sovereigntyUpgrades",
        60,
        "fuel:map? mutually_exclusive_group:str power_allocation:int? workforce_allocation:int?",
    ),
    of_fields(
        "stationOperations",
        60,
        "activityID:int border:real corridor:real description:desc? fringe:real hub:real \
         manufacturingFactor:real operationName:name ratio:real researchFactor:real services:ints \
         stationTypes:kv",
    ),
    of_fields("stationServices", 30, "description:desc? serviceName:name"),
    of_shape("translationLanguages", 8, shape::LANGUAGE, shape::language),
    of_fields("typeBonus", 5_000, "iconID:int? roleBonuses:mods types:kv miscBonuses:mods? bonusText:desc"),
    of_shape("typeDogma", 400_000, shape::DOGMA, shape::dogma),
    of_fields(
        "typeLists",
        300,
        "includedCategoryIDs:ints? includedGroupIDs:ints? includedTypeIDs:ints? name:str",
    ),
    of_shape("typeMaterials", 30_000, shape::MATERIALS, shape::materials),
    of_shape("types", 500_000, shape::TYPES, shape::types),
];

/// The tables as the floor is told them: a line for each, its name and then `column:holds`, with spaces between.
pub(super) fn schema() -> String {
    let line = |file: &File| {
        let columns =
            file.columns().into_iter().map(|column| format!(" {}:{}", column.name, column.holds.name()));
        format!("{}{}\n", file.name, columns.collect::<String>())
    };
    FILES.iter().map(line).collect()
}
