// The words of the story grammar, one list per class. Entries are parted by '|', an entry's forms by '/'. Rules that
// test_stories.c checks: no entry may begin another one at a word border (the text has to tell them apart), and the
// article "a" or "an" has to follow from the first letter (so no "hour", no "unicorn").
#ifndef DATALOADER_STORIES_WORDS_H
#define DATALOADER_STORIES_WORDS_H

// A class of words. `low` and `high` cut out a part of the list (both 0: all of it). Classes that share a list share
// its numbering, which is what lets the grammar subtract numbers.
typedef struct {
    const char *name;
    const char *forms; // names of the forms, parted by '/'; the form "gender" brings he, him, his and so on with it
    const char *words;
    int low, high;
} WordClass;

#define NUMBERS "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"

// clang-format off
#define TRADES \
    "blacksmith/forge|carpenter/workshop|potter/pottery|jeweller/jewellery shop|locksmith/lock shop|" \
    "glassblower/glassworks|sculptor/stone yard|tinker/caravan|inventor/laboratory|engineer/engine shed|" \
    "baker/bakehouse|miller/millhouse|shoemaker/shoe shop|farmer/farmhouse|gardener/garden shed|teacher/schoolhouse|" \
    "librarian/reading room|innkeeper/inn|painter/studio|sailor/dock|letter carrier/post office|" \
    "astronomer/observatory"

#define SPOTS \
    "under the bridge|behind the mill|inside the hollow oak|in the hayloft|behind the woodpile|in the greenhouse|" \
    "behind the waterfall|under the haystack|in the toolshed|in the boathouse|beneath the apple tree|in the stable|" \
    "below the pier|in the cave|in the cellar|behind the chicken coop|at the end of the tunnel|" \
    "inside the empty barn|on top of the wardrobe|under the doormat|in the old well|under a loose floorboard|" \
    "behind the curtain|on the highest shelf|among the reeds|under the hedge|behind the stove|inside the drum|" \
    "in the pocket of a coat|at the bottom of the trunk|inside the piano|in a bird's nest|behind the bookcase|" \
    "between two rocks|inside the chimney|under the pillow|in the laundry basket|near the scarecrow|" \
    "beside the beehives|inside a boot|in the kitchen drawer|under the table|in the watering can|inside the suitcase"

static const WordClass WORD_CLASSES[] = {
    {"name", "self/gender",
     "Ada/f|Anna/f|Bonnie/f|Clara/f|Della/f|Elsa/f|Fatima/f|Gerda/f|Hazel/f|Irene/f|Jenny/f|Laila/f|Lucy/f|Matilda/f|"
     "Nadia/f|Olga/f|Rosa/f|Stella/f|Abel/m|Anton/m|Barnaby/m|Bruno/m|Cyril/m|Elias/m|Felix/m|George/m|Harvey/m|Ivan/m|"
     "Jonas/m|Knut/m|Lucas/m|Milo/m|Olaf/m|Paul/m|Rasmus/m|Silas/m",
     0, 0},
    {"kin", "self/gender",
     "mother/f|father/m|grandmother/f|grandfather/m|uncle/m|older sister/f|older brother/m|godmother/f|cousin/f|"
     "great-aunt/f|great-uncle/m|stepmother/f",
     0, 0},
    {"town", "self",
     "Alderbrook|Amberly|Birchmoor|Cloverhill|Dunmarsh|Eastmere|Foxglen|Greyhaven|Inkwood|Juniper Bay|Little Haddon|"
     "Maplewick|Nettleby|Northwick|Pebble Cove|Quarryton|Rushmere|Saltwick|Snowdrop Green|Sunder|Underhill|Upper Dell|"
     "Wheatley|Windle",
     0, 0},
    {"settlement", "self",
     "village|town|hamlet|market town|fishing village|farming village|harbour town|mill town|valley|island town",
     0, 0},
    {"landscape", "self",
     "by the sea|at the edge of a forest|among green hills|at the foot of a mountain|near a deep lake|"
     "between two valleys|on a windy plain|above a rocky bay|along an old canal|under the northern stars|"
     "where two rivers meet|far from the city",
     0, 0},
    {"trait", "self",
     "brave|patient|curious|gentle|shy|careful|generous|lively|quiet|kind|dreamy|funny|loyal|merry|noisy|polite|proud|"
     "sensible|sleepy|strong|talkative|wise|witty|absent-minded|ambitious|energetic|impatient|inventive",
     0, 0},
    {"feeling", "self",
     "happy|glad|relieved|surprised|thankful|pleased|amazed|content|calm|cheered|comforted|satisfied|overjoyed|touched|"
     "grateful|amused",
     0, 0},
    {"worry", "self",
     "sad|worried|upset|nervous|gloomy|miserable|uneasy|unhappy|disappointed|confused|alarmed|puzzled",
     0, 0},
    {"thing", "self",
     "bell|key|whistle|box|comb|lantern|mirror|coin|brooch|bracelet|locket|jar|bowl|kettle|clock|telescope|"
     "magnifying glass|toy boat|toy horse|music box|inkwell|hammer|trowel|ladle|pitcher|tray|teapot|hourglass|padlock|"
     "anchor charm|arrowhead|knitting needle|paperweight|figurine|marble|domino|tuning fork|ruler|measuring stick|"
     "rattle|yo-yo|crown|sceptre|bead|plaque|vase|acorn carving|owl carving|bucket|flask|casket|picture frame|eggcup|"
     "astrolabe",
     0, 0},
    {"look", "self",
     "silver|golden|copper|wooden|iron|painted|polished|tiny|heavy|old|strange|little|carved|curved|crooked|dusty|"
     "rusty|sparkling|precious|ordinary|elegant|scratched|handmade|striped|mysterious|narrow|enormous|oval",
     0, 0},
    {"colour", "self",
     "red|blue|yellow|purple|white|black|grey|pink|turquoise|violet|ivory|amber|indigo|maroon|lilac|olive",
     0, 0},
    {"fur", "self", "black|white|grey|spotted|striped|golden|tawny|reddish|dark|snow-white", 0, 0},
    {"garment", "self",
     "scarf|hat|coat|jacket|shawl|jumper|vest|apron|cardigan|raincoat|belt|ribbon|hood|tunic|poncho|sweater",
     0, 0},
    {"spot", "self", SPOTS, 0, 0},
    {"refuge", "self", SPOTS, 0, 17}, // a person fits in
    {"outing", "self",
     "the river|the market|the forest camp|the old mill|the castle|the lighthouse|the orchard|the library|the meadow|"
     "the town square|the fair|the school|the station|the museum|the park|the vineyard|the ruins|the watchtower|"
     "the duck pond|the hilltop|the botanical garden|the monastery|the racecourse|the playground|the dunes|the canyon|"
     "the glacier|the chapel|the zoo|the shipyard",
     0, 0},
    {"trade", "self/place", TRADES, 0, 0},
    {"pet", "self/sound/past",
     "dog/bark/barked|cat/meow/meowed|goat/bleat/bleated|pony/neigh/neighed|parrot/screech/screeched|"
     "duck/quack/quacked|rooster/crow/crowed|calf/moo/mooed|piglet/squeal/squealed|owl/hoot/hooted|"
     "canary/chirp/chirped|hamster/squeak/squeaked",
     0, 0},
    {"petname", "self",
     "Biscuit|Button|Pepper|Ginger|Pickle|Patches|Clover|Mittens|Noodle|Nutmeg|Pudding|Rascal|Rocket|Rusty|Snowball|"
     "Socks|Sparky|Toffee|Turnip|Waffles",
     0, 0},
    {"wild", "self", "fox|hare|badger|deer|wolf|squirrel|hedgehog|eagle|otter|stork|rabbit|hawk", 0, 0},
    {"fruit", "self",
     "apples|pears|plums|peaches|apricots|figs|oranges|melons|chestnuts|hazelnuts|pumpkins|onions|carrots|potatoes|"
     "beans|mushrooms|cucumbers|eggs|shells|feathers|acorns|pine cones|blackberries|coconuts",
     0, 0},
    {"many", "self", NUMBERS, 6, 12},
    {"few", "self", NUMBERS, 2, 4},
    {"number", "self", NUMBERS, 0, 12},
    {"dish", "self",
     "barley soup|apple cake|fresh bread|mushroom stew|cheese dumplings|honey biscuits|vegetable pie|fried fish|"
     "tomato soup|buttered toast|plum jam|noodle soup|baked potatoes|lentil stew|scrambled eggs|chocolate pudding|"
     "corn fritters|berry tart|chicken broth|walnut cookies|garlic bread|lemon cake|carrot cake|goat cheese|"
     "caramel custard|sausages",
     0, 0},
    {"ingredient", "self",
     "flour|butter|sugar|salt|cream|yeast|mustard|parsley|cinnamon|vanilla|ginger|saffron|cheese|rice|raisins|almonds|"
     "thyme|rosemary|pepper|molasses",
     0, 0},
    {"occasion", "self",
     "the harvest festival|the spring dance|the midsummer feast|the winter concert|the lantern parade|the school play|"
     "the autumn fair|the anniversary|the carnival|the banquet",
     0, 0},
    {"tree", "self", "oak|birch|pine|elm|ash|poplar|cedar|linden|beech|hazel|larch|alder|cypress|rowan", 0, 0},
    {"flower", "self",
     "roses|tulips|daisies|violets|sunflowers|marigolds|daffodils|orchids|peonies|snowdrops|crocuses|irises|carnations|"
     "asters|dahlias|geraniums|lavender|primroses",
     0, 0},
    {"vehicle", "self",
     "cart|sailing boat|bicycle|train|canoe|raft|ferry|hot-air balloon|coach|barge|tricycle|steamboat",
     0, 0},
    {"game", "self",
     "running race|chess game|sack race|kite contest|spelling contest|skating race|rowing race|snowball fight|"
     "juggling contest|cooking contest|ball game|card game|sailing race|singing contest",
     0, 0},
    {"weekday", "self", "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday", 0, 0},
    {"season", "self", "spring|summer|autumn|winter", 0, 0},
    {"daytime", "self", "morning|afternoon|evening|night", 0, 0},
    {"month", "self", "January|February|March|April|May|June|July|August|September|October|November|December", 0, 0},
    {"weather", "self",
     "the rain fell softly|a cold wind blew from the north|the sky was almost white|the chimneys smoked|"
     "the sky was clear and blue|thunder rumbled far away|the air smelled of wet grass|mist hung above the water|"
     "hail drummed on the shutters|a rainbow stood over the roofs|the streets were full of puddles|"
     "church bells rang in the distance|the whole place was quiet|everyone was talking about the weather",
     0, 0},
    {"gait", "self", "walked|ran|hurried|marched|wandered|rushed|trudged|raced|tiptoed|crept|dashed|stumbled", 0, 0},
    {"manner", "self",
     "quietly|slowly|softly|gently|calmly|politely|eagerly|kindly|seriously|sweetly|warmly|loudly|carefully|patiently|"
     "cheerfully|sincerely|earnestly|hoarsely|innocently|solemnly",
     0, 0},
    {"chore", "self",
     "mend the fence|sweep the yard|feed the geese|water the plants|milk the cows|rake the gravel|peel the vegetables|"
     "fetch water|fold the sheets|shear the sheep|repair the nets|sharpen the knives|copy the lessons|"
     "sew the buttons on",
     0, 0},
    {"hobby", "self",
     "reading|drawing|dancing|climbing trees|telling stories|collecting stamps|singing|solving riddles|knitting|"
     "looking at maps|building towers|counting stars|fishing|cooking|skating|playing cards|studying insects|"
     "growing herbs",
     0, 0},
};
// clang-format on

#endif
