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
    "blacksmith/forge|carpenter/workshop|potter/pottery|jeweller/jewellery shop|clockmaker/clock shop|" \
    "locksmith/lock shop|glassblower/glassworks|sculptor/stone yard|toymaker/toy shop|tinker/caravan|" \
    "inventor/laboratory|engineer/engine shed|wheelwright/wheel shop|baker/bakehouse|miller/millhouse|" \
    "shoemaker/shoe shop|tailor/sewing room|farmer/farmhouse|gardener/garden shed|teacher/schoolhouse|" \
    "doctor/surgery|librarian/reading room|innkeeper/inn|painter/studio|printer/printing house|sailor/dock|" \
    "letter carrier/post office|astronomer/observatory|antique dealer/antique shop"

#define SPOTS \
    "under the bridge|behind the mill|inside the hollow oak|beneath the stairs|in the hayloft|behind the woodpile|" \
    "under the rowing boat|in the greenhouse|behind the waterfall|in the bell tower|under the haystack|" \
    "in the toolshed|under the wagon|in the boathouse|beneath the apple tree|in the stable|behind the church|" \
    "below the pier|in the cave|in the attic|in the cellar|behind the chicken coop|beneath the willow|" \
    "at the end of the tunnel|inside the empty barn|behind the town wall|on top of the wardrobe|under the doormat|" \
    "in the old well|beside the garden gate|under a loose floorboard|behind the curtain|on the highest shelf|" \
    "in the rabbit hutch|among the reeds|under the hedge|in the flour bin|behind the stove|inside the drum|" \
    "in the pocket of a coat|under a pile of leaves|at the bottom of the trunk|inside the piano|in the empty barrel|" \
    "in a bird's nest|behind the bookcase|between two rocks|on the window sill|inside the chimney|under the pillow|" \
    "in the laundry basket|behind the statue|near the scarecrow|beside the beehives|on the roof of the barn|" \
    "inside a boot|in the kitchen drawer|under the table|behind the fountain|in the watering can|" \
    "inside the suitcase|in the tall grass"

static const WordClass WORD_CLASSES[] = {
    {"name", "self/gender",
     "Ada/f|Agnes/f|Alma/f|Amira/f|Anna/f|Astrid/f|Beatrix/f|Bella/f|Bonnie/f|Bridget/f|Carmen/f|Cecily/f|Celia/f|"
     "Clara/f|Cora/f|Daisy/f|Dalia/f|Della/f|Dora/f|Edith/f|Elena/f|Elsa/f|Emily/f|Esther/f|Etta/f|Eva/f|Fatima/f|"
     "Fiona/f|Flora/f|Freya/f|Gerda/f|Grace/f|Greta/f|Hanna/f|Hazel/f|Heidi/f|Helga/f|Ida/f|Imogen/f|Ingrid/f|Irene/f|"
     "Iris/f|Isla/f|Ivy/f|Jenny/f|Josie/f|Juno/f|Kira/f|Laila/f|Lena/f|Lily/f|Linnea/f|Lotta/f|Lucy/f|Mabel/f|Maja/f|"
     "Marta/f|Matilda/f|Mina/f|Mira/f|Molly/f|Nadia/f|Nell/f|Nina/f|Nora/f|Odette/f|Olga/f|Olive/f|Petra/f|Polly/f|"
     "Rosa/f|Ruth/f|Sally/f|Selma/f|Stella/f|Tilda/f|Tove/f|Vera/f|Wilma/f|Zelda/f|Abel/m|Adam/m|Albert/m|Alfie/m|"
     "Anton/m|Arlo/m|Arthur/m|Axel/m|Barnaby/m|Basil/m|Benno/m|Bertil/m|Boris/m|Bruno/m|Caleb/m|Casper/m|Cedric/m|"
     "Cyril/m|Dario/m|David/m|Edgar/m|Elias/m|Emil/m|Enzo/m|Erik/m|Ernest/m|Felix/m|Finn/m|Frank/m|Fritz/m|George/m|"
     "Gustav/m|Hamid/m|Harald/m|Harvey/m|Hector/m|Henry/m|Hugo/m|Igor/m|Isaac/m|Ivan/m|Jacob/m|Jasper/m|Joel/m|Jonas/m|"
     "Karim/m|Kasimir/m|Klaus/m|Knut/m|Lars/m|Leo/m|Linus/m|Lorenz/m|Lucas/m|Magnus/m|Malik/m|Marcus/m|Milo/m|Nelson/m|"
     "Nils/m|Noah/m|Olaf/m|Omar/m|Oscar/m|Otto/m|Pablo/m|Paul/m|Peter/m|Quentin/m|Ralph/m|Rasmus/m|Robin/m|Rufus/m|"
     "Samuel/m|Silas/m|Simon/m|Sven/m|Theo/m|Tobias/m|Victor/m",
     0, 0},
    {"kin", "self/gender",
     "mother/f|father/m|grandmother/f|grandfather/m|aunt/f|uncle/m|older sister/f|older brother/m|godmother/f|"
     "godfather/m|cousin/f|great-aunt/f|great-uncle/m|stepmother/f|stepfather/m",
     0, 0},
    {"town", "self",
     "Alderbrook|Amberly|Ashwick|Barrowdale|Birchmoor|Bramblecross|Cloverhill|Copperford|Cranley|Dunmarsh|Eastmere|"
     "Elmstead|Fennwater|Foxglen|Gorsefield|Greyhaven|Hartwell|Hollowbrook|Inkwood|Juniper Bay|Kestrel Point|Larkfield|"
     "Little Haddon|Longmeadow|Maplewick|Merrow|Mossbank|Nettleby|Northwick|Oakridge|Otterbridge|Pebble Cove|Pinefall|"
     "Quarryton|Ravensgate|Redcliff|Rushmere|Saltwick|Silverdale|Skylark Hill|Snowdrop Green|Stonebury|Sunder|"
     "Thistledown|Thornbury|Underhill|Upper Dell|Wavecrest|Westerly|Wheatley|Willowmere|Windle|Wrenfield|Yarrow",
     0, 0},
    {"settlement", "self",
     "village|town|hamlet|market town|fishing village|farming village|harbour town|mill town|valley|island town",
     0, 0},
    {"landscape", "self",
     "by the sea|at the edge of a forest|among green hills|beside a wide river|at the foot of a mountain|"
     "near a deep lake|between two valleys|behind tall cliffs|on a windy plain|above a rocky bay|along an old canal|"
     "south of the moor|under the northern stars|where two rivers meet|far from the city|close to the border",
     0, 0},
    {"trait", "self",
     "brave|patient|curious|clever|gentle|cheerful|shy|stubborn|careful|generous|quick|thoughtful|lively|quiet|kind|"
     "bold|dreamy|friendly|funny|hopeful|loyal|merry|modest|nimble|noisy|polite|proud|restless|sensible|serious|sleepy|"
     "sly|strong|talkative|tall|tidy|wise|witty|absent-minded|adventurous|ambitious|eager|energetic|easygoing|"
     "impatient|inventive|obedient|outspoken",
     0, 0},
    {"feeling", "self",
     "happy|glad|relieved|surprised|delighted|thankful|pleased|amazed|content|joyful|calm|cheered|comforted|satisfied|"
     "astonished|overjoyed|touched|grateful|amused|warm inside",
     0, 0},
    {"worry", "self",
     "sad|worried|upset|anxious|nervous|gloomy|miserable|troubled|uneasy|unhappy|disappointed|lonely|confused|alarmed|"
     "puzzled|heartbroken",
     0, 0},
    {"thing", "self",
     "bell|key|whistle|spoon|box|cup|ring|comb|lantern|compass|mirror|button|coin|medal|brooch|bracelet|necklace|"
     "locket|thimble|bottle|jar|bowl|plate|kettle|candlestick|clock|pocket watch|telescope|magnifying glass|"
     "chess piece|spinning top|toy boat|toy soldier|toy horse|music box|snuffbox|inkwell|letter opener|hammer|chisel|"
     "trowel|ladle|sieve|funnel|pitcher|goblet|tray|teapot|jug|egg timer|hourglass|padlock|buckle|anchor charm|"
     "arrowhead|horseshoe|doorknob|knitting needle|hairpin|paperweight|figurine|globe|dice cup|marble|domino|drumstick|"
     "tuning fork|ruler|napkin ring|dragon carving|measuring stick|scoop|rattle|yo-yo|puzzle|mask|crown|sceptre|amulet|"
     "bead|pendant|trophy|plaque|vase|urn|acorn carving|owl carving|fish hook|opal pin|bucket|flask|tin|casket|"
     "money box|birdcage|picture frame|eggcup|abacus|astrolabe|earring|icicle ornament",
     0, 0},
    {"look", "self",
     "silver|golden|copper|brass|wooden|iron|crystal|painted|polished|shiny|tiny|heavy|old|ancient|strange|little|"
     "beautiful|carved|curved|round|crooked|dusty|rusty|smooth|sparkling|precious|unusual|ordinary|elegant|dented|"
     "scratched|handmade|borrowed|foreign|mysterious|narrow|plain|enormous|oval|engraved",
     0, 0},
    {"colour", "self",
     "red|blue|green|yellow|purple|orange|white|black|brown|grey|pink|scarlet|turquoise|violet|crimson|ivory|amber|"
     "emerald|indigo|maroon|cream|lilac|olive|rose",
     0, 0},
    {"fur", "self",
     "black|white|grey|brown|spotted|striped|speckled|golden|tawny|reddish|pale|dark|snow-white|sandy",
     0, 0},
    {"garment", "self",
     "scarf|hat|coat|cap|jacket|shawl|cloak|jumper|vest|bonnet|apron|cardigan|raincoat|waistcoat|belt|ribbon|bow tie|"
     "hood|tunic|sash|poncho|sweater|kerchief",
     0, 0},
    {"spot", "self", SPOTS, 0, 0},
    {"refuge", "self", SPOTS, 0, 25}, // a person fits in
    {"outing", "self",
     "the river|the market|the forest camp|the beach|the old mill|the castle|the lighthouse|the lake|the orchard|"
     "the library|the meadow|the harbour|the town square|the fair|the school|the bakery|the station|the museum|"
     "the park|the theatre|the vineyard|the ruins|the watchtower|the quarry|the duck pond|the hilltop|"
     "the botanical garden|the windmill|the monastery|the racecourse|the playground|the brook|the dunes|the canyon|"
     "the glacier|the hot springs|the chapel|the zoo|the shipyard|the town hall",
     0, 0},
    // The first of these can mend things.
    {"trade", "self/place", TRADES, 0, 0},
    {"mender", "self/place", TRADES, 0, 12},
    {"pet", "self/sound/past",
     "dog/bark/barked|cat/meow/meowed|goat/bleat/bleated|pony/neigh/neighed|parrot/screech/screeched|"
     "duck/quack/quacked|hen/cluck/clucked|rooster/crow/crowed|calf/moo/mooed|piglet/squeal/squealed|owl/hoot/hooted|"
     "canary/chirp/chirped|hamster/squeak/squeaked|turkey/gobble/gobbled",
     0, 0},
    {"petname", "self",
     "Biscuit|Button|Pepper|Ginger|Muffin|Pickle|Patches|Clover|Lightning|Mittens|Noodle|Nutmeg|Peanut|Pudding|Rascal|"
     "Rocket|Rusty|Shadow|Snowball|Socks|Sparky|Thunder|Toffee|Turnip|Waffles|Whiskers",
     0, 0},
    {"wild", "self",
     "fox|hare|badger|deer|wolf|bear|squirrel|hedgehog|heron|eagle|hawk|otter|beaver|weasel|mole|toad|lizard|wild boar|"
     "lynx|elk|stork|swan|crane|cuckoo|woodpecker|bat|rabbit|seal|porcupine|magpie|falcon|salamander",
     0, 0},
    {"fruit", "self",
     "apples|pears|plums|cherries|peaches|apricots|figs|lemons|oranges|melons|walnuts|chestnuts|hazelnuts|pumpkins|"
     "cabbages|onions|carrots|potatoes|turnips|beans|mushrooms|tomatoes|cucumbers|eggs|shells|pebbles|feathers|acorns|"
     "pine cones|strawberries|blackberries|coconuts|leeks",
     0, 0},
    {"many", "self", NUMBERS, 6, 12},
    {"few", "self", NUMBERS, 2, 4},
    {"number", "self", NUMBERS, 0, 12},
    {"dish", "self",
     "barley soup|apple cake|fresh bread|pancakes|mushroom stew|cheese dumplings|roasted chestnuts|honey biscuits|"
     "vegetable pie|rice pudding|fried fish|tomato soup|gingerbread|buttered toast|plum jam|oat porridge|noodle soup|"
     "baked potatoes|cinnamon rolls|lentil stew|scrambled eggs|chocolate pudding|raisin buns|corn fritters|berry tart|"
     "smoked trout|chicken broth|walnut cookies|spinach omelette|garlic bread|lemon cake|stuffed peppers|carrot cake|"
     "goat cheese|almond cream|caramel custard|sausages|waffles",
     0, 0},
    {"ingredient", "self",
     "flour|butter|milk|sugar|salt|honey|cream|yeast|vinegar|mustard|parsley|garlic|cinnamon|vanilla|nutmeg|ginger|"
     "saffron|oil|cheese|rice|oatmeal|raisins|almonds|cocoa|thyme|rosemary|basil|pepper|molasses|buttermilk",
     0, 0},
    {"instrument", "self",
     "flute|fiddle|drum|harp|trumpet|guitar|accordion|cello|lute|clarinet|piano|organ|banjo|mandolin|tambourine|"
     "trombone|violin|harmonica|bagpipe|horn|xylophone|oboe|zither|recorder",
     0, 0},
    {"occasion", "self",
     "the harvest festival|the spring dance|the wedding|the midsummer feast|the winter concert|the birthday party|"
     "the lantern parade|the village fete|the school play|the autumn fair|the opening of the bridge|the anniversary|"
     "the carnival|the new year celebration|the banquet|the family reunion",
     0, 0},
    {"tree", "self",
     "oak|birch|pine|maple|elm|ash|willow|poplar|cedar|sycamore|linden|beech|hazel|spruce|larch|alder|hawthorn|cypress|"
     "rowan|juniper",
     0, 0},
    {"flower", "self",
     "roses|tulips|daisies|lilies|violets|sunflowers|poppies|marigolds|daffodils|bluebells|orchids|peonies|foxgloves|"
     "snowdrops|crocuses|irises|pansies|carnations|asters|begonias|dahlias|geraniums|hyacinths|lavender|primroses|"
     "zinnias",
     0, 0},
    {"vehicle", "self",
     "cart|sailing boat|sled|bicycle|train|carriage|canoe|raft|wagon|ferry|hot-air balloon|mule|coach|barge|tram|"
     "tricycle|steamboat|handcart",
     0, 0},
    {"game", "self",
     "running race|chess game|sack race|swimming race|kite contest|spelling contest|archery contest|skating race|"
     "rowing race|tug of war|snowball fight|juggling contest|cooking contest|riddle contest|ball game|card game|"
     "climbing contest|sailing race|singing contest|dancing contest",
     0, 0},
    {"weekday", "self", "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday", 0, 0},
    {"season", "self", "spring|summer|autumn|winter", 0, 0},
    {"daytime", "self", "morning|afternoon|evening|night", 0, 0},
    {"month", "self", "January|February|March|April|May|June|July|August|September|October|November|December", 0, 0},
    {"weather", "self",
     "the rain fell softly|a cold wind blew from the north|the sky was almost white|thick fog covered the fields|"
     "the chimneys smoked|the sky was clear and blue|clouds drifted over the hills|thunder rumbled far away|"
     "the air smelled of wet grass|a light breeze stirred the branches|mist hung above the water|"
     "hail drummed on the shutters|a rainbow stood over the roofs|crows circled in the air|"
     "the streets were full of puddles|church bells rang in the distance|the roads were empty|"
     "the whole place was quiet|everyone was talking about the weather|nobody wanted to stay at home",
     0, 0},
    {"gait", "self",
     "walked|ran|hurried|strolled|marched|wandered|rushed|skipped|trudged|raced|tiptoed|limped|crept|dashed|stumbled|"
     "galloped",
     0, 0},
    {"manner", "self",
     "quietly|slowly|proudly|softly|gently|happily|calmly|politely|shyly|eagerly|kindly|firmly|seriously|sweetly|"
     "wisely|warmly|loudly|bravely|carefully|patiently|thoughtfully|cheerfully|sincerely|boldly|earnestly|hoarsely|"
     "dreamily|innocently|solemnly|briskly",
     0, 0},
    {"chore", "self/past",
     "mend the fence/mended the fence|sweep the yard/swept the yard|chop wood/chopped wood|"
     "feed the geese/fed the geese|wash the windows/washed the windows|water the plants/watered the plants|"
     "milk the cows/milked the cows|polish the boots/polished the boots|rake the gravel/raked the gravel|"
     "paint the shutters/painted the shutters|peel the vegetables/peeled the vegetables|bake the rolls/baked the rolls|"
     "fetch water/fetched water|fold the sheets/folded the sheets|stack the firewood/stacked the firewood|"
     "shear the sheep/sheared the sheep|knead the dough/kneaded the dough|repair the nets/repaired the nets|"
     "sharpen the knives/sharpened the knives|weed the flower beds/weeded the flower beds|"
     "copy the lessons/copied the lessons|brush the horses/brushed the horses|sew the buttons on/sewed the buttons on|"
     "dust the shelves/dusted the shelves",
     0, 0},
    {"hobby", "self",
     "reading|drawing|dancing|swimming|climbing trees|telling stories|collecting stamps|watching birds|singing|"
     "solving riddles|knitting|flying kites|looking at maps|building towers|counting stars|writing poems|fishing|"
     "cooking|skating|inventing games|playing cards|studying insects|growing herbs|making puppets",
     0, 0},
};
// clang-format on

#endif
