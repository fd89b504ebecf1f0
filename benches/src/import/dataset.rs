//! The files of a folder, modelled on the static data that a game publishes: a few are large, most are lookup tables.

use std::sync::LazyLock;

use super::{
    file::File,
    line_writers::{self, LineWriter},
};

/// A row for each file: its name, its number of lines at scale 1, and its fields. Files without a line writer also have
/// an integer `_key`.
const TABLE: &str = "\
_sde 1 _key:str buildNumber:int releaseDate:str
agentTypes 13 name:str
agentsInSpace 600 dungeonID:int solarSystemID:int spawnPointID:int typeID:int
ancestries 45 bloodlineID:int charisma:int description:desc iconID:int? intelligence:int memory:int name:name \
    perception:int shortDescription:text? willpower:int
bloodlines 20 charisma:int corporationID:int description:desc iconID:int? name:name raceID:int
blueprints 20_000 _key:int activities:map blueprintTypeID:int maxProductionLimit:int
categories 50 iconID:int? name:name published:bool
certificates 150 description:desc groupID:int name:name recommendedFor:ints skillTypes:kv
characterAttributes 5 description:text iconID:int name:name notes:text shortDescription:text
cloneGrades 5 name:str skills:kv
compressibleTypes 500 compressedTypeID:int
contrabandTypes 150 factions:kv
controlTowerResources 50 resources:kv
corporationActivities 20 name:name
dbuffCollections 200 aggregateMode:str developerDescription:text displayName:name? itemModifiers:mods \
    operationName:str showOutputValueInUI:str
dogmaAttributeCategories 40 description:text? name:str
dogmaAttributes 3_000 attributeCategoryID:int? dataType:int defaultValue:real description:text? displayName:name? \
    highIsGood:bool iconID:int? name:str published:bool stackable:bool unitID:int?
dogmaEffects 3_500 disallowAutoRepeat:bool dischargeAttributeID:int? durationAttributeID:int? effectCategoryID:int \
    electronicChance:bool guid:str? isAssistance:bool isOffensive:bool isWarpSafe:bool modifierInfo:mods name:str \
    propulsionChance:bool published:bool rangeChance:bool description:desc? displayName:name?
dogmaUnits 60 description:name? displayName:name? name:str
dynamicItemAttributes 300 attributeIDs:kv inputOutputMapping:kv
factions 30 corporationID:int description:desc flatLogo:path? iconID:int memberRaces:ints name:name \
    shortDescription:desc? sizeFactor:real solarSystemID:int uniqueName:bool
freelanceJobSchemas 6 _value:kv
graphics 60_000 graphicFile:path iconFolder:path? sofFactionName:str? sofHullName:str? sofRaceName:str?
groups 1_600 anchorable:bool anchored:bool categoryID:int fittableNonSingleton:bool iconID:int? name:name \
    published:bool useBasePrice:bool
icons 25_000 iconFile:path
landmarks 60 description:desc iconID:int? locationID:int? name:name position:pos
mapAsteroidBelts 50_000 _key:int attributes:map celestialIndex:int orbitID:int orbitIndex:int position:pos radius:int \
    solarSystemID:int statistics:map typeID:int uniqueName:name
mapConstellations 1_200 factionID:int? name:name position:pos regionID:int solarSystemIDs:ints wormholeClassID:int?
mapMoons 400_000 _key:int attributes:map celestialIndex:int orbitID:int orbitIndex:int position:pos radius:int \
    solarSystemID:int statistics:map typeID:int uniqueName:name
mapPlanets 80_000 _key:int attributes:map celestialIndex:int orbitID:int orbitIndex:int position:pos radius:int \
    solarSystemID:int statistics:map typeID:int uniqueName:name
mapRegions 120 constellationIDs:ints description:desc? factionID:int? name:name nebulaID:int position:pos \
    wormholeClassID:int?
mapSolarSystems 9_000 _key:int border:bool constellationID:int hub:bool luminosity:real name:name planetIDs:ints \
    position:pos position2D:pos radius:real securityClass:str securityStatus:real starID:int stargateIDs:ints \
    regionID:int
mapStargates 15_000 _key:int destination:map position:pos solarSystemID:int typeID:int
mapStars 9_000 radius:big solarSystemID:int statistics:map typeID:int
marketGroups 2_000 description:desc? hasTypes:bool iconID:int? name:name parentGroupID:int?
masteries 500 _value:kv
mercenaryTacticalOperations 10 anarchy_impact:int description:desc development_impact:int infomorph_bonus:int \
    name:name
metaGroups 15 color:map? iconID:int? iconSuffix:str? name:name
npcCharacters 12_000 bloodlineID:int? ceo:bool corporationID:int gender:bool locationID:int? name:name raceID:int? \
    startDate:str? uniqueName:bool
npcCorporationDivisions 10 description:desc? displayName:str internalName:str leaderTypeName:name name:name
npcCorporations 300 allowedMemberRaces:ints? ceoID:int? corporationTrades:kv deleted:bool description:desc \
    divisions:kv enemyID:int? exchangeRates:kv extent:str factionID:int? friendID:int? hasPlayerPersonnelManager:bool \
    iconID:int? initialPrice:int investors:kv lpOfferTables:ints mainActivityID:int? memberLimit:int minSecurity:real \
    minimumJoinStanding:int name:name sendCharTerminationMessage:bool shares:big size:str sizeFactor:real? \
    solarSystemID:int? stationID:int? taxRate:real tickerName:str uniqueName:bool
npcStations 5_200 celestialIndex:int operationID:int orbitID:int orbitIndex:int? ownerID:int position:pos \
    reprocessingEfficiency:real reprocessingHangarFlag:int reprocessingStationsTake:real solarSystemID:int typeID:int \
    useOperationName:bool
planetResources 30_000 power:int? reagent:map? workforce:int?
planetSchematics 70 cycleTime:int name:name pins:ints types:kv
races 11 description:desc? iconID:int? name:name shipTypeID:int? skills:kv
skinLicenses 20_000 duration:int licenseTypeID:int skinID:int
skinMaterials 2_000 displayName:name? materialSetID:int
skins 20_000 allowCCPDevs:bool internalName:str skinMaterialID:int types:ints visibleSerenity:bool \
    visibleTranquility:bool
sovereigntyUpgrades 60 fuel:map? mutually_exclusive_group:str power_allocation:int? workforce_allocation:int?
stationOperations 60 activityID:int border:real corridor:real description:desc? fringe:real hub:real \
    manufacturingFactor:real operationName:name ratio:real researchFactor:real services:ints stationTypes:kv
stationServices 30 description:desc? serviceName:name
translationLanguages 8 _key:str name:str
typeBonus 5_000 iconID:int? roleBonuses:mods types:kv miscBonuses:mods? bonusText:desc
typeDogma 400_000 _key:int dogmaAttributes:kv dogmaEffects:kv
typeLists 300 includedCategoryIDs:ints? includedGroupIDs:ints? includedTypeIDs:ints? name:str
typeMaterials 30_000 _key:int materials:kv
types 500_000 _key:int basePrice:real capacity:real description:desc factionID:int graphicID:int groupID:int \
    iconID:int marketGroupID:int mass:real metaGroupID:int name:name portionSize:int published:bool raceID:int \
    radius:real soundID:int sofMaterialSetID:int variationParentTypeID:int volume:real";

pub(super) static FILES: LazyLock<Vec<File>> = LazyLock::new(|| TABLE.lines().map(file).collect());

fn file(row: &'static str) -> File {
    let mut words = row.splitn(3, ' ');
    let mut word = || words.next().expect("a row has a name, a number and fields");
    let (name, lines, fields) = (word(), word(), word());
    let lines = lines.replace('_', "").parse().expect("the number of lines is a number");
    File { name, lines, fields, line_writer: line_writer(name) }
}

/// Returns the function that writes the lines of a file whose fields or lines depend on each other.
fn line_writer(name: &str) -> Option<LineWriter> {
    let line_writer: LineWriter = match name {
        "_sde" => line_writers::sde,
        "blueprints" => line_writers::blueprints,
        "mapAsteroidBelts" | "mapMoons" | "mapPlanets" => line_writers::celestial,
        "mapSolarSystems" => line_writers::solar_system,
        "mapStargates" => line_writers::gate,
        "translationLanguages" => line_writers::language,
        "typeDogma" => line_writers::dogma,
        "typeMaterials" => line_writers::materials,
        "types" => line_writers::types,
        _ => return None,
    };
    Some(line_writer)
}

/// Returns the schema for the floor: one line per table, its name and then `column:type`, separated by spaces.
pub(super) fn schema() -> String {
    let line = |file: &File| {
        let columns =
            file.columns().into_iter().map(|column| format!(" {}:{}", column.name, column.column_type.name()));
        format!("{}{}\n", file.name, columns.collect::<String>())
    };
    FILES.iter().map(line).collect()
}
