"""Words and inflection tables of the demo grammar: German beside English, and no grammar rules.

The tables are text, one word per line, so that anyone who knows the two languages can read and extend them; an
underscore stands for a space inside one column. ``demo_grammar.py`` names the modules that build sentences of them.

The tables keep the promise that the demo needs: a German word, seen in its sentence, has one English translation.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple

Words = Tuple[str, ...]


class Noun(NamedTuple):
    """One noun. Its first tag is its kind; verbs and adjectives choose nouns by tag, or by the lemma itself."""

    lemma: str
    gender: str  # m, f or n
    plural: str  # empty for mass nouns
    english: str
    english_plural: str
    tags: FrozenSet[str]
    kind: str
    genitive: str = ""  # only where the rule would give another form
    weak: bool = False  # der Student, den Studenten
    plural_only: bool = False  # die Eltern
    place: Words = ()  # prepositions for place and direction: ("in", "at", "in", "to") for im Kino, ins Kino


class Adjective(NamedTuple):
    """One adjective with its degrees; ``stem`` is what endings are added to (dunkel, dunkl-)."""

    lemma: str
    stem: str
    comparative: str
    superlative: str  # without ending: ältest-
    english: str
    english_comparative: str
    english_superlative: str
    graded: bool
    tags: FrozenSet[str]  # of the nouns it goes with


class Slot(NamedTuple):
    """One complement of a verb: its role, its case and prepositions, and the nouns that fit."""

    role: str  # acc, dat, prep, loc or dir
    case: str
    german: str  # preposition
    english: str  # preposition, empty for a plain object
    tags: Words


class Verb(NamedTuple):
    """One verb with its principal parts, its English and its frame."""

    prefix: str  # separable prefix or empty
    infinitive: str  # without the prefix, like the three parts that follow
    third: str  # er ruft
    past: str  # er rief
    participle: str  # gerufen
    auxiliary: str  # haben or sein
    reflexive: bool
    english: str
    particle: str  # a pronoun object goes before it: pick him up
    tail: Words  # other English words behind the verb: look forward to
    subjects: Words
    slots: Tuple[Slot, ...]
    flags: FrozenSet[str]
    places: Words
    manners: Words

    @property
    def name(self) -> str:
        """The infinitive as the dictionary has it, such as anrufen."""
        return self.prefix + self.infinitive


class Modal(NamedTuple):
    """One modal verb with six forms for each tense; its English may need more words (want to)."""

    infinitive: str
    present: Words
    past: Words
    english_present: str
    english_past: str
    tail_present: Words
    tail_past: Words


class PronounEntry(NamedTuple):
    """One personal pronoun in both languages."""

    nominative: str
    accusative: str
    dative: str
    reflexive: str
    possessive: str  # stem: mein-
    english_subject: str
    english_object: str
    english_possessive: str
    person: int
    plural: bool
    gender: str


class Town(NamedTuple):
    """A town or a country; a few countries have an article in German (die Schweiz)."""

    german: str
    english: str
    country: bool
    article: bool


class Phrase(NamedTuple):
    """Ready-made words that never inflect."""

    german: Words
    english: Words


class Reason(NamedTuple):
    """Why something is done, and the names of the verbs that may follow."""

    kind: str
    phrase: Phrase
    verbs: FrozenSet[str]


class Matrix(NamedTuple):
    """A verb that takes a clause: with dass, with ob, or an infinitive with zu."""

    verb: Verb
    clauses: Words


def _rows(table: str, separator: Optional[str] = None) -> Iterator[List[str]]:
    for line in table.splitlines():
        line = line.split("#")[0].strip()
        if line:
            yield [cell.strip() for cell in line.split(separator)]


def _words(cell: str) -> Words:
    return tuple(cell.replace("_", " ").split())


def _options(cells: List[str]) -> Dict[str, str]:
    return {key: value for key, _, value in (cell.partition("=") for cell in cells)}


# lemma gender plural english[/plural] kind[,tag...] and options:
#   weak      weak declension
#   pl        plural only
#   gen=X     genitive, where it is not what the rule says
#   at=a:b,c:d  German:English preposition for the place and for the direction (im Kino, ins Kino: at=in:at,in:to)
# "-" as plural: a mass noun.
_NOUNS = """
Mann            m Männer            man/men              person
Frau            f Frauen            woman/women          person
Kind            n Kinder            child/children       person,young
Junge           m Jungen            boy                  person,young weak
Mädchen         n Mädchen           girl                 person,young
Lehrer          m Lehrer            teacher              person,job
Lehrerin        f Lehrerinnen       teacher              person,job
Schüler         m Schüler           pupil                person,job,young
Schülerin       f Schülerinnen      pupil                person,job,young
Student         m Studenten         student              person,job weak
Studentin       f Studentinnen      student              person,job
Arzt            m Ärzte             doctor               person,job,doctor
Ärztin          f Ärztinnen         doctor               person,job,doctor
Polizist        m Polizisten        policeman/policemen  person,job weak
Polizistin      f Polizistinnen     policewoman/policewomen person,job
Verkäufer       m Verkäufer         salesman/salesmen    person,job
Verkäuferin     f Verkäuferinnen    saleswoman/saleswomen person,job
Koch            m Köche             cook                 person,job
Köchin          f Köchinnen         cook                 person,job
Bäcker          m Bäcker            baker                person,job
Bauer           m Bauern            farmer               person,job weak
Künstler        m Künstler          artist               person,job
Künstlerin      f Künstlerinnen     artist               person,job
Musiker         m Musiker           musician             person,job
Sänger          m Sänger            singer               person,job
Sängerin        f Sängerinnen       singer               person,job
Schauspieler    m Schauspieler      actor                person,job
Schauspielerin  f Schauspielerinnen actress              person,job
Journalist      m Journalisten      journalist           person,job weak
Journalistin    f Journalistinnen   journalist           person,job
Ingenieur       m Ingenieure        engineer             person,job
Architekt       m Architekten       architect            person,job weak
Architektin     f Architektinnen    architect            person,job
Richter         m Richter           judge                person,job
Anwalt          m Anwälte           lawyer               person,job
Anwältin        f Anwältinnen       lawyer               person,job
Professor       m Professoren       professor            person,job
Professorin     f Professorinnen    professor            person,job
Kellner         m Kellner           waiter               person,job
Kellnerin       f Kellnerinnen      waitress             person,job
Fahrer          m Fahrer            driver               person
Nachbar         m Nachbarn          neighbor             person,kin weak
Nachbarin       f Nachbarinnen      neighbor             person,kin
Kollege         m Kollegen          colleague            person,kin weak
Kollegin        f Kolleginnen       colleague            person,kin
Chef            m Chefs             boss                 person,kin gen=Chefs
Chefin          f Chefinnen         boss                 person,kin
Freund          m Freunde           friend               person,kin
Freundin        f Freundinnen       friend               person,kin
Gast            m Gäste             guest                person
Kunde           m Kunden            customer             person weak
Kundin          f Kundinnen         customer             person
Patient         m Patienten         patient              person,patient weak
Patientin       f Patientinnen      patient              person,patient
Tourist         m Touristen         tourist              person weak
Touristin       f Touristinnen      tourist              person
Dieb            m Diebe             thief/thieves        thief
Königin         f Königinnen        queen                person
Prinz           m Prinzen           prince               person weak
Bruder          m Brüder            brother              person,kin,family
Schwester       f Schwestern        sister               person,kin,family
Vater           m Väter             father               person,kin,family,elder
Mutter          f Mütter            mother               person,kin,family,elder
Sohn            m Söhne             son                  person,kin,family,young
Tochter         f Töchter           daughter             person,kin,family,young
Onkel           m Onkel             uncle                person,kin,family
Tante           f Tanten            aunt                 person,kin,family
Großvater       m Großväter         grandfather          person,kin,family,elder
Großmutter      f Großmütter        grandmother          person,kin,family,elder
Cousin          m Cousins           cousin               person,kin,family
Cousine         f Cousinen          cousin               person,kin,family
Enkel           m Enkel             grandson             person,kin,family,young
Enkelin         f Enkelinnen        granddaughter        person,kin,family,young
Eltern          m Eltern            parents/parents      person,kin,family,elder pl
Leute           m Leute             people/people        person pl

Hund            m Hunde             dog                  animal,pet,hunter
Katze           f Katzen            cat                  animal,pet,hunter
Pferd           n Pferde            horse                animal,farm
Kuh             f Kühe              cow                  animal,farm
Vogel           m Vögel             bird                 animal,prey
Maus            f Mäuse             mouse/mice           animal,prey
Schwein         n Schweine          pig                  animal,farm
Schaf           n Schafe            sheep/sheep          animal,farm
Ente            f Enten             duck                 animal,prey
Hase            m Hasen             hare                 animal,prey weak
Bär             m Bären             bear                 animal,wild weak
Löwe            m Löwen             lion                 animal,wild weak
Elefant         m Elefanten         elephant             animal,wild weak
Affe            m Affen             monkey               animal,wild weak
Wolf            m Wölfe             wolf/wolves          animal,wild,hunter
Fuchs           m Füchse            fox                  animal,wild,hunter

Brot            n -                 bread                food,bake
Käse            m -                 cheese               food
Fleisch         n -                 meat                 food,cook
Reis            m -                 rice                 food,cook
Obst            n -                 fruit                food,fruit
Schokolade      f -                 chocolate            food
Honig           m -                 honey                food
Suppe           f Suppen            soup                 food,cook
Salat           m Salate            salad                food
Kuchen          m Kuchen            cake                 food,bake
Apfel           m Äpfel             apple                food,fruit
Birne           f Birnen            pear                 food,fruit
Ei              n Eier              egg                  food,cook gen=Eies
Kartoffel       f Kartoffeln        potato/potatoes      food,cook
Tomate          f Tomaten           tomato/tomatoes      food,fruit
Banane          f Bananen           banana               food,fruit
Kirsche         f Kirschen          cherry               food,fruit
Wurst           f Würste            sausage              food
Brötchen        n Brötchen          roll                 food,bake
Fisch           m Fische            fish/fish            food,cook
Keks            m Kekse             cookie               food,bake
Wasser          n -                 water                drink
Milch           f -                 milk                 drink
Kaffee          m -                 coffee               drink
Tee             m -                 tea                  drink gen=Tees
Saft            m -                 juice                drink
Wein            m -                 wine                 drink
Bier            n -                 beer                 drink

Buch            n Bücher            book                 text,plot,gift
Brief           m Briefe            letter               text,letter,post
Zeitung         f Zeitungen         newspaper            text
Zeitschrift     f Zeitschriften     magazine             text
Roman           m Romane            novel                text,plot,gift,letter
Bericht         m Berichte          report               text,letter,post
Artikel         m Artikel           article              text,letter
Gedicht         n Gedichte          poem                 text,letter
Geschichte      f Geschichten       story                text,plot,letter,tale
Märchen         n Märchen           fairy_tale           text,plot,tale
Nachricht       f Nachrichten       message              text,letter,post
Postkarte       f Postkarten        postcard             text,letter,post
Rezept          n Rezepte           recipe               text
Vertrag         m Verträge          contract             text,post
Text            m Texte             text                 text,letter

Mantel          m Mäntel            coat                 clothes,garment,hang
Jacke           f Jacken            jacket               clothes,garment,hang
Hemd            n Hemden            shirt                clothes,garment
Kleid           n Kleider           dress                clothes,garment,hang
Rock            m Röcke             skirt                clothes,garment
Hut             m Hüte              hat                  clothes,hang
Schuh           m Schuhe            shoe                 clothes,garment,pair
Pullover        m Pullover          sweater              clothes,garment
Mütze           f Mützen            cap                  clothes
Schal           m Schals            scarf/scarves        clothes gen=Schals
Bluse           f Blusen            blouse               clothes,garment
Krawatte        f Krawatten         tie                  clothes
Anzug           m Anzüge            suit                 clothes,garment,hang
Gürtel          m Gürtel            belt                 clothes
Handschuh       m Handschuhe        glove                clothes,garment,pair

Schlüssel       m Schlüssel         key                  thing,small
Tasche          f Taschen           bag                  thing,container,gift at=in:in,in:into
Koffer          m Koffer            suitcase             thing,container at=in:in,in:into
Korb            m Körbe             basket               thing,container at=in:in,in:into
Kiste           f Kisten            box                  thing,container at=in:in,in:into
Paket           n Pakete            package              thing,post,heavy
Ball            m Bälle             ball                 thing,small,gift,toy
Puppe           f Puppen            doll                 thing,small,gift,toy
Messer          n Messer            knife/knives         thing,small
Gabel           f Gabeln            fork                 thing,small
Löffel          m Löffel            spoon                thing,small
Teller          m Teller            plate                thing,upright
Tasse           f Tassen            cup                  thing,upright
Glas            n Gläser            glass                thing,upright
Flasche         f Flaschen          bottle               thing,upright
Vase            f Vasen             vase                 thing,upright,gift
Bild            n Bilder            picture              thing,hang,gift,paint
Foto            n Fotos             photo                thing,small,hang
Fahrkarte       f Fahrkarten        ticket               thing,small
Geschenk        n Geschenke         present              thing,small
Blume           f Blumen            flower               thing,gift,plant,paint
Rose            f Rosen             rose                 thing,gift,plant,paint
Kerze           f Kerzen            candle               thing,upright
Regenschirm     m Regenschirme      umbrella             thing,small
Ring            m Ringe             ring                 thing,small,gift
Stift           m Stifte            pen                  thing,small
Spiegel         m Spiegel           mirror               thing,hang
Decke           f Decken            blanket              thing
Kissen          n Kissen            pillow               thing
Gitarre         f Gitarren          guitar               thing,gift
Lampe           f Lampen            lamp                 thing,device,upright
Uhr             f Uhren             clock                thing,hang
Telefon         n Telefone          telephone            thing,device
Computer        m Computer          computer             thing,device
Radio           n Radios            radio                thing,device
Fernseher       m Fernseher         television           thing,device
Kamera          f Kameras           camera               thing,device,gift

Tisch           m Tische            table                furniture,surface at=auf:on,auf:on
Stuhl           m Stühle            chair                furniture,surface,seat at=auf:on,auf:on
Bett            n Betten            bed                  furniture,surface,seat at=auf:on,auf:on
Sofa            n Sofas             sofa                 furniture,surface,seat at=auf:on,auf:on
Regal           n Regale            shelf/shelves        furniture,surface at=in:on,in:on
Schrank         m Schränke          cupboard             furniture,closed at=in:in,in:into
Sessel          m Sessel            armchair             furniture,seat at=in:in,in:into
Bank            f Bänke             bench                furniture,surface,seat at=auf:on,auf:on
Teppich         m Teppiche          carpet               furniture,surface at=auf:on,auf:on
Tür             f Türen             door                 part,open at=an:on,an:on
Fenster         n Fenster           window               part,open
Tor             n Tore              gate                 part,open
Wand            f Wände             wall                 part at=an:on,an:on
Dach            n Dächer            roof                 part

Auto            n Autos             car                  vehicle,road,own
Bus             m Busse             bus                  vehicle,public,halt gen=Busses
Zug             m Züge              train                vehicle,public,halt
Fahrrad         n Fahrräder         bicycle              vehicle,road,own
Flugzeug        n Flugzeuge         plane                vehicle,public
Schiff          n Schiffe           ship                 vehicle,public
Boot            n Boote             boat                 vehicle,own
Straßenbahn     f Straßenbahnen     tram                 vehicle,public,halt
Taxi            n Taxis             taxi                 vehicle,road,halt
Lastwagen       m Lastwagen         truck                vehicle,road,halt
Motorrad        n Motorräder        motorcycle           vehicle,road,own

Haus            n Häuser            house                building,home,outer at=in:in,in:into
Wohnung         f Wohnungen         apartment            building,home at=in:in,in:into
Schule          f Schulen           school               building,town,outer,hall at=in:at,in:to
Kirche          f Kirchen           church               building,town,outer,hall at=in:in,in:to
Kino            n Kinos             cinema               building,town,outer at=in:at,in:to
Theater         n Theater           theater              building,town,outer,hall at=in:at,in:to
Museum          n Museen            museum               building,town,outer,hall at=in:in,in:to
Restaurant      n Restaurants       restaurant           building,town,outer,dine at=in:in,in:to
Café            n Cafés             café                 building,town,outer,dine at=in:in,in:to gen=Cafés
Hotel           n Hotels            hotel                building,town,outer,dine,hall at=in:in,in:to
Krankenhaus     n Krankenhäuser     hospital             building,town,outer,work at=in:in,in:to
Bahnhof         m Bahnhöfe          station              building,town,outer,arrive at=an:at,zu:to
Flughafen       m Flughäfen         airport              building,town,arrive at=an:at,zu:to
Universität     f Universitäten     university           building,town,outer,work,hall at=an:at,zu:to
Bibliothek      f Bibliotheken      library              building,town,outer,work at=in:in,in:to
Supermarkt      m Supermärkte       supermarket          building,town,outer,work at=in:in,in:to
Bäckerei        f Bäckereien        bakery               building,town,outer,work at=in:in,zu:to
Apotheke        f Apotheken         pharmacy             building,town,outer,work at=in:in,zu:to
Büro            n Büros             office               building,work at=in:in,in:to
Fabrik          f Fabriken          factory              building,work,outer at=in:in,zu:to
Rathaus         n Rathäuser         town_hall            building,town,outer,work at=in:in,zu:to
Schloss         n Schlösser         castle               building,outer,hall at=in:in,zu:to
Turm            m Türme             tower                building,outer at=auf:on,zu:to
Küche           f Küchen            kitchen              room,inside at=in:in,in:into
Zimmer          n Zimmer            room                 room,inside at=in:in,in:into
Wohnzimmer      n Wohnzimmer        living_room          room,inside at=in:in,in:into
Badezimmer      n Badezimmer        bathroom             room at=in:in,in:into
Keller          m Keller            cellar               room at=in:in,in:into
Garage          f Garagen           garage               room at=in:in,in:into
Balkon          m Balkone           balcony              room,inside at=auf:on,auf:onto
Garten          m Gärten            garden               outdoor,green at=in:in,in:into
Park            m Parks             park                 outdoor,green,through at=in:in,in:to gen=Parks
Wald            m Wälder            forest               outdoor,green,through at=in:in,in:into
Wiese           f Wiesen            meadow               outdoor,green,across at=auf:in,auf:onto
Stadt           f Städte            city                 outdoor,town,live,through at=in:in,in:to
Dorf            n Dörfer            village              outdoor,town,live,through at=in:in,in:to
Insel           f Inseln            island               outdoor,live at=auf:on,auf:to
Markt           m Märkte            market               outdoor,town at=auf:at,auf:to
Platz           m Plätze            square               outdoor,town,across at=auf:in,auf:to
Straße          f Straßen           street               outdoor,across at=auf:on,auf:onto
Brücke          f Brücken           bridge               outdoor,across at=auf:on,auf:onto
Berg            m Berge             mountain             outdoor at=auf:on,auf:up
See             m Seen              lake                 outdoor,water at=an:at,an:to gen=Sees
Fluss           m Flüsse            river                outdoor,water at=an:at,an:to
Strand          m Strände           beach                outdoor,water at=an:on,an:to
Hafen           m Häfen             harbor               outdoor,town,arrive at=an:at,zu:to
Zoo             m Zoos              zoo                  outdoor,town at=in:at,in:to gen=Zoos
Feld            n Felder            field                outdoor,across at=auf:in,auf:into

Problem         n Probleme          problem              abstract,solve,talk
Frage           f Fragen            question             abstract,thought,talk
Antwort         f Antworten         answer               abstract,thought
Idee            f Ideen             idea                 abstract,thought,talk
Plan            m Pläne             plan                 abstract,thought,talk
Aufgabe         f Aufgaben          exercise             abstract,solve
Fehler          m Fehler            mistake              abstract
Regel           f Regeln            rule                 abstract
Wort            n Wörter            word                 abstract
Satz            m Sätze             sentence             abstract
Lösung          f Lösungen          solution             abstract,thought
Vorschlag       m Vorschläge        suggestion           abstract,thought,talk
Lied            n Lieder            song                 tune
Film            m Filme             movie                show,talk gen=Films
Witz            m Witze             joke                 tale
Weg             m Wege              way                  path
Prüfung         f Prüfungen         exam                 event
Konzert         n Konzerte          concert              event,show,hosted
Fest            n Feste             festival             event,fun,hosted
Hochzeit        f Hochzeiten        wedding              event,fun,hosted
Reise           f Reisen            trip                 event,fun
Besprechung     f Besprechungen     meeting              event,hosted
Vorlesung       f Vorlesungen       lecture              event,hosted
Geburtstag      m Geburtstage       birthday             fun
Ausflug         m Ausflüge          excursion            event,fun
Spiel           n Spiele            game                 event,show
Wettbewerb      m Wettbewerbe       competition          event,hosted
Kurs            m Kurse             course               event,hosted
"""

# The head gives gender, plural and tags; "Form=english" is the first part with its linking element.
_COMPOUNDS = """
Tür:        Haus=house Garten=garden Küchen=kitchen Keller=cellar Wohnungs=apartment Hotel=hotel Holz=wooden Glas=glass
Fenster:    Küchen=kitchen Keller=cellar Büro=office Schul=school Dach=roof Hotel=hotel
Schlüssel:  Haus=house Auto=car Wohnungs=apartment Büro=office Keller=cellar Zimmer=room
Zimmer:     Arbeits=study Kinder=children_'s Hotel=hotel Gäste=guest
Tisch:      Garten=garden Küchen=kitchen Arbeits=work Holz=wooden Glas=glass
Stuhl:      Garten=garden Küchen=kitchen Büro=office Holz=wooden Kinder=children_'s
Bank:       Garten=garden Park=park Holz=wooden
Schrank:    Küchen=kitchen Schuh=shoe Keller=cellar
Regal:      Bücher=book Küchen=kitchen Holz=wooden Wein=wine
Lampe:      Küchen=kitchen Garten=garden Arbeits=work
Uhr:        Küchen=kitchen Bahnhofs=station Wand=wall
Tasche:     Leder=leather Schul=school Reise=travel Sport=sports
Jacke:      Leder=leather Winter=winter Sommer=summer Regen=rain
Mantel:     Winter=winter Leder=leather Regen=rain
Schuh:      Leder=leather Winter=winter Sommer=summer Kinder=children_'s Sport=sports
Kleid:      Sommer=summer Abend=evening Hochzeits=wedding
Hut:        Sommer=summer Sonnen=sun Stroh=straw
Suppe:      Kartoffel=potato Tomaten=tomato Gemüse=vegetable Fisch=fish Hühner=chicken
Kuchen:     Apfel=apple Kirsch=cherry Zitronen=lemon Schokoladen=chocolate Geburtstags=birthday
Salat:      Kartoffel=potato Tomaten=tomato Obst=fruit Gurken=cucumber
Saft:       Apfel=apple Tomaten=tomato Kirsch=cherry Orangen=orange
Tee:        Kräuter=herbal Pfefferminz=peppermint Früchte=fruit
Buch:       Kinder=children_'s Schul=school Geschichts=history
Zeitung:    Sonntags=Sunday Abend=evening Schul=school
Geschichte: Liebes=love Kinder=children_'s Tier=animal
Brief:      Liebes=love Abschieds=farewell Geschäfts=business
Lehrer:     Deutsch=German Mathematik=mathematics Musik=music Geschichts=history Englisch=English
Lehrerin:   Deutsch=German Mathematik=mathematics Musik=music Geschichts=history Englisch=English
Prüfung:    Deutsch=German Mathematik=mathematics Geschichts=history Englisch=English
Kurs:       Deutsch=German Englisch=English Sprach=language Tanz=dance
Fest:       Dorf=village Stadt=city Sommer=summer Schul=school Kinder=children_'s
Konzert:    Sommer=summer Schul=school Weihnachts=Christmas Abend=evening
Geschenk:   Geburtstags=birthday Weihnachts=Christmas Hochzeits=wedding
Ausflug:    Schul=school Sonntags=Sunday Familien=family
Bus:        Stadt=city Schul=school Nacht=night
Zug:        Nacht=night
Garten:     Schul=school Gemüse=vegetable Rosen=rose Kräuter=herb
Park:       Stadt=city Schloss=castle
Hund:       Polizei=police Wach=guard
Teppich:    Woll=woolen
Decke:      Woll=woolen
Pullover:   Woll=woolen
Glas:       Wein=wine Wasser=water Bier=beer
Flasche:    Wein=wine Wasser=water Milch=milk
Tasse:      Kaffee=coffee Tee=tea
Messer:     Küchen=kitchen Brot=bread Taschen=pocket
"""

# lemma english tags and options:
#   cmp=a,b   comparative and superlative stem, where the rule does not give them
#   stem=X    what endings are added to
#   en=a,b    English degrees, where the rule does not give them; en=more for "more, most"
#   fixed     not compared
_ADJECTIVES = """
alt          old          person,animal,text,clothes,thing,furniture,part,vehicle,building,tune,show cmp=älter,ältest
jung         young        person,animal                        cmp=jünger,jüngst
neu          new          text,clothes,thing,furniture,part,vehicle,building,abstract cmp=neuer,neuest
groß         big          animal,clothes,thing,furniture,part,vehicle,building,room,outdoor,fruit,Fisch cmp=größer,größt
klein        small        animal,young,clothes,thing,furniture,part,vehicle,building,room,outdoor,fruit,Kuchen,Fisch
schön        beautiful    clothes,thing,furniture,building,room,outdoor,fun,animal,tune en=more
hässlich     ugly         clothes,furniture,building
freundlich   friendly     person
nett         nice         person
klug         smart        person,pet                           cmp=klüger,klügst
fleißig      diligent     person                               en=more
faul         lazy         person,pet
müde         tired        person,animal                        stem=müd cmp=müder,müdest en=more
krank        sick         person,animal                        fixed
gesund       healthy      person,animal,food                   cmp=gesünder,gesündest
glücklich    happy        person
traurig      sad          person,tale,tune
stark        strong       person,animal                        cmp=stärker,stärkst
schwach      weak         person                               cmp=schwächer,schwächst
reich        rich         person
arm          poor         person                               cmp=ärmer,ärmst
berühmt      famous       person,building,plot,tune            en=more
höflich      polite       person                               en=more
ehrlich      honest       person                               en=more
mutig        brave        person
geduldig     patient      person                               en=more
neugierig    curious      person,animal                        en=more
schüchtern   shy          person                               en=shyer,shyest
vorsichtig   careful      person                               en=more
hungrig      hungry       person,animal
durstig      thirsty      person,animal
nervös       nervous      person                               en=more
stolz        proud        person
zufrieden    satisfied    person                               en=more
wütend       angry        person                               cmp=wütender,wütendst
ernst        serious      person                               en=more
lustig       funny        plot,tale,show,young,tune
intelligent  intelligent  person                               en=more
gefährlich   dangerous    wild,thief                           en=more
wild         wild         wild                                 fixed
teuer        expensive    clothes,thing,furniture,vehicle,food,drink stem=teur cmp=teurer,teuerst en=more
billig       cheap        clothes,thing,furniture,food,drink
schwer       heavy        furniture,container,heavy
leicht       light        container,clothes
rot          red          clothes,container,road,seat,upright,plant fixed
blau         blue         clothes,container,road,seat,upright  fixed
grün         green        clothes,container,road,seat,upright  fixed
gelb         yellow       clothes,container,road,seat,plant    fixed
schwarz      black        clothes,container,road,seat,farm,pet fixed
weiß         white        clothes,container,road,part,farm,pet,plant fixed
braun        brown        clothes,container,seat,farm,pet      fixed
grau         gray         clothes,road,part,pet                fixed
bunt         colorful     clothes,toy,Teppich,Decke,Kissen     en=more
rund         round        Tisch,Teppich,Fenster,Turm,Spiegel   fixed
kaputt       broken       device,road,furniture,Uhr                fixed
sauber       clean        clothes,room,vehicle                 cmp=sauberer,sauberst
schmutzig    dirty        clothes,room,vehicle,part
nass         wet          clothes,pet                          fixed
lang         long         text,event,show,tale                 cmp=länger,längst
kurz         short        text,event,show,tale                 cmp=kürzer,kürzest
breit        wide         across,part,furniture
schmal       narrow       Straße,Brücke,Weg,furniture,part
dick         thick        clothes,Buch,Roman,Decke             fixed
hoch         high         part,Turm,Berg,Brücke                stem=hoh cmp=höher,höchst
dunkel       dark         room,Wald,Straße                     stem=dunkl cmp=dunkler,dunkelst
hell         bright       room,Lampe
modern       modern       building,vehicle,furniture,room,device en=more
praktisch    practical    container,vehicle,clothes,device     cmp=praktischer,praktischst en=more
nützlich     useful       small,abstract,device                en=more
weich        soft         seat,Kissen,Decke
bequem       comfortable  seat,clothes,vehicle                 en=more
leer         empty        container,room,upright,public        fixed
voll         full         container,public                     fixed
frisch       fresh        food,Milch,Saft
warm         warm         cook,drink,clothes,room              cmp=wärmer,wärmst
kalt         cold         drink,room,cook                      cmp=kälter,kältest
heiß         hot          cook,Tee,Kaffee,Milch                cmp=heißer,heißest
süß          sweet        fruit,bake,drink                     cmp=süßer,süßest
sauer        sour         fruit,Milch,Wein                     stem=saur cmp=saurer,sauerst
lecker       tasty        food
reif         ripe         fruit
interessant  interesting  text,tale,abstract,event,outdoor,show en=more
langweilig   boring       text,event,show                      en=more
wichtig      important    post,abstract,event                  en=more
schwierig    difficult    abstract,Prüfung                     en=more
einfach      simple       abstract,Text,Rezept
spannend     exciting     plot,tale,show                       cmp=spannender,spannendst en=more
gut          good         food,drink,text,thought,show,job,Freund,Freundin cmp=besser,best en=better,best
schlecht     bad          text,thought,show                   en=worse,worst
ruhig        quiet        room,outdoor,Hotel,pet
laut         loud         young,road,Radio,Fernseher,tune
pünktlich    punctual     public,job                           en=more
schnell      fast         vehicle
langsam      slow         vehicle
"""

# What one would rather not be or have: decides between und and aber.
UNWANTED = frozenset(
    "alt klein hässlich faul müde traurig schwach arm neugierig schüchtern hungrig durstig nervös stolz wütend ernst "
    "gefährlich teuer schwer schmutzig kurz schmal dunkel kalt sauer langweilig schwierig schlecht laut langsam".split()
)

# nominative accusative dative reflexive possessive-stem english subject object possessive person number gender
_PRONOUNS = """
ich     ich mich mir   mich mein  I    me   my    1 sg m
du      du  dich dir   dich dein  you  you  your  2 sg m
er      er  ihn  ihm   sich sein  he   him  his   3 sg m
sie     sie sie  ihr   sich ihr   she  her  her   3 sg f
es      es  es   ihm   sich sein  it   it   its   3 sg n
wir     wir uns  uns   uns  unser we   us   our   1 pl m
ihr     ihr euch euch  euch euer  you  you  your  2 pl m
sie_pl  sie sie  ihnen sich ihr   they them their 3 pl m
Sie     Sie Sie  Ihnen sich Ihr   you  you  your  3 pl m
er_it   er  ihn  ihm   sich sein  it   it   its   3 sg m   # der Tisch, der Hund
sie_it  sie sie  ihr   sich ihr   it   it   its   3 sg f   # die Lampe, die Katze
"""

# No name ends in a hissing sound: the genitive is plain -s (Annas Buch).
FEMALE_NAMES = ("Anna", "Maria", "Julia", "Lena", "Sophie", "Eva", "Laura", "Hanna")
MALE_NAMES = ("Peter", "Paul", "Martin", "Jan", "Simon", "Daniel", "Stefan", "David")

_TOWNS = """
Berlin Berlin
Hamburg Hamburg
München Munich
Köln Cologne
Wien Vienna
Zürich Zurich
Rom Rome
Prag Prague
Warschau Warsaw
Brüssel Brussels
Deutschland Germany country
Österreich Austria country
Frankreich France country
Italien Italy country
Spanien Spain country
Griechenland Greece country
Schweiz Switzerland country die
Türkei Turkey country die
"""

# german ; principal parts (er ruft, er rief, gerufen) or weak ; h or s ; english ; subjects ; frame ; flags
#   german   an|rufen has a separable prefix, sich_freuen is reflexive
#   english  "pick +up" has a particle; further words stay behind the verb (look forward to)
#   frame    acc=tags dat=tags dat:to=tags (explains it to him) auf+acc:for=tags (waits for) loc=tags dir=tags;
#            "map" stands for towns and countries, "Hause" for zu Hause and nach Hause, "person" for zum Arzt
#   flags    state (neither progressive nor imperative), noprogress, noperfect (lasting, without adverbs and modals),
#            passive, in=tags (where it may happen), how=groups of MANNERS, with (needs a vehicle: mit dem Bus),
#            benefit (takes für), since (takes seit), nocommand, vague (only its object tells what it
#            means), fresh (its object belongs to nobody yet)
_VERBS = """
lesen ; liest las gelesen ; h ; read ; person ; acc=text ; passive in=inside|green|dine how=speed
schreiben ; schreibt schrieb geschrieben ; h ; write ; person ; acc=letter ; passive in=inside|dine how=speed
kaufen ; weak ; h ; buy ; person ; acc=clothes|food|drink|thing|furniture|own|text ; in=Supermarkt|Markt benefit fresh
verkaufen ; weak ; h ; sell ; person ; acc=clothes|thing|furniture|own ; passive
essen ; isst aß gegessen ; h ; eat ; person|pet ; acc=food ; in=dine|inside how=speed
trinken ; trinkt trank getrunken ; h ; drink ; person ; acc=drink ; in=dine|inside
kochen ; weak ; h ; cook ; person ; acc=cook ; in=Küche passive benefit fresh
backen ; backt backte gebacken ; h ; bake ; person ; acc=bake ; in=Küche passive benefit fresh
suchen ; weak ; h ; look for ; person ; acc=small|clothes|container|pet|text|young ; in=room|outdoor since
finden ; findet fand gefunden ; h ; find ; person ; acc=small|clothes|container|text ; passive in=room|outdoor state
verlieren ; verliert verlor verloren ; h ; lose ; person ; acc=small|clothes ; state in=town
sehen ; sieht sah gesehen ; h ; see ; person|pet ; acc=person|animal|building|vehicle ; state in=outdoor
besuchen ; weak ; h ; visit ; person ; acc=person|hall ;
kennen ; kennt kannte gekannt ; h ; know ; person ; acc=person|tale|live ; state noperfect since
lieben ; weak ; h ; love ; person ; acc=family|pet ; state noperfect
brauchen ; weak ; h ; need ; person ; acc=thing|clothes|own|Lösung|Plan ; state noperfect
haben ; hat hatte gehabt ; h ; have ; person ; acc=thing|clothes|own|pet|talk ; state noperfect
bauen ; weak ; h ; build ; person ; acc=building ; passive
reparieren ; weak ; h ; repair ; person ; acc=device|vehicle|part|Uhr ; passive how=speed
öffnen ; weak ; h ; open ; person ; acc=open|container|closed|Brief ; passive how=care
schließen ; schließt schloss geschlossen ; h ; close ; person ; acc=open|container|closed ; passive how=care
waschen ; wäscht wusch gewaschen ; h ; wash ; person ; acc=clothes|road ; passive
putzen ; weak ; h ; clean ; person ; acc=room|open ; passive how=depth
tragen ; trägt trug getragen ; h ; wear ; person ; acc=clothes ;
tragen ; trägt trug getragen ; h ; carry ; person ; acc=container|Paket ; how=care vague
malen ; weak ; h ; paint ; person ; acc=animal|paint|outdoor ; passive how=speed benefit fresh
fotografieren ; weak ; h ; photograph ; person ; acc=animal|person|building|outdoor ; passive
verstehen ; versteht verstand verstanden ; h ; understand ; person ; acc=text|abstract|person ; state
beantworten ; weak ; h ; answer ; person ; acc=Frage|Brief|Nachricht ; passive how=speed
lösen ; weak ; h ; solve ; person ; acc=solve ; passive how=speed
vergessen ; vergisst vergaß vergessen ; h ; forget ; person ; acc=small|clothes|abstract ; state
wiederholen ; wiederholt wiederholte wiederholt ; h ; repeat ; person ; acc=Frage|Wort|Satz|Regel ; passive
übersetzen ; übersetzt übersetzte übersetzt ; h ; translate ; person ; acc=text|Wort|Satz ; passive how=speed benefit
bezahlen ; weak ; h ; pay for ; person ; acc=food|drink|clothes|Fahrkarte ;
bestellen ; weak ; h ; order ; person ; acc=food|drink|Buch ; in=dine benefit fresh
holen ; weak ; h ; get ; person ; acc=food|drink|small|clothes ; benefit
stehlen ; stiehlt stahl gestohlen ; h ; steal ; thief ; acc=small|gift|own ; fresh
schneiden ; schneidet schnitt geschnitten ; h ; cut ; person ; acc=Brot|Käse|Fleisch|Kuchen|Wurst|fruit ; how=speed
füttern ; weak ; h ; feed ; person ; acc=animal ; passive
streicheln ; weak ; h ; stroke ; person ; acc=pet|Pferd ; how=care
fangen ; fängt fing gefangen ; h ; catch ; hunter|person ; acc=prey ; in=outdoor
jagen ; weak ; h ; chase ; hunter ; acc=prey ; in=outdoor
treffen ; trifft traf getroffen ; h ; meet ; person ; acc=person ; in=town|dine|green state
fragen ; weak ; h ; ask ; person ; acc=person ;
loben ; weak ; h ; praise ; person ; acc=person ; passive
begrüßen ; weak ; h ; greet ; person ; acc=person ; passive how=warmth
beobachten ; weak ; h ; watch ; person|pet ; acc=person|animal ; in=outdoor
unterrichten ; unterrichtet unterrichtete unterrichtet ; h ; teach ; Lehrer|Lehrerin|Professor|Professorin \
; acc=Schüler|Schülerin|Student|Studentin|Kind ; passive
untersuchen ; untersucht untersuchte untersucht ; h ; examine ; doctor ; acc=patient|pet|Kind ; passive how=depth
verpassen ; weak ; h ; miss ; person ; acc=public ; state
benutzen ; weak ; h ; use ; person ; acc=device|small|own ;
gewinnen ; gewinnt gewann gewonnen ; h ; win ; person ; acc=Spiel|Wettbewerb ; state
verlassen ; verlässt verließ verlassen ; h ; leave ; person ; acc=building|live|room ; state
erreichen ; weak ; h ; reach ; person ; acc=town|water|Insel ; state
betreten ; betritt betrat betreten ; h ; enter ; person ; acc=room|outer ;
genießen ; genießt genoss genossen ; h ; enjoy ; person ; acc=fun|show|food|drink ;
feiern ; weak ; h ; celebrate ; person ; acc=Geburtstag|Hochzeit ; in=dine|green
planen ; weak ; h ; plan ; person ; acc=event ; passive how=depth
verstecken ; weak ; h ; hide ; person ; acc=small|letter ; in=room
pflanzen ; weak ; h ; plant ; person ; acc=plant ; in=green fresh
retten ; weak ; h ; rescue ; person ; acc=young|pet ; passive
erkennen ; erkennt erkannte erkannt ; h ; recognize ; person ; acc=person|building ; state
vermissen ; weak ; h ; miss ; person ; acc=kin|pet ; state noperfect
verbessern ; weak ; h ; improve ; person ; acc=letter|Rezept|Plan ; passive
singen ; singt sang gesungen ; h ; sing ; person ; acc=tune ; in=inside|green how=voice
unterschreiben ; unterschreibt unterschrieb unterschrieben ; h ; sign ; person \
; acc=Vertrag|Brief|Bericht|Postkarte ; passive
bekommen ; bekommt bekam bekommen ; h ; receive ; person ; acc=post|small|gift ; state fresh
an|rufen ; ruft rief gerufen ; h ; call ; person ; acc=person ;
ab|holen ; weak ; h ; pick +up ; person ; acc=person|Paket ; in=arrive
ein|laden ; lädt lud geladen ; h ; invite ; person ; acc=person ; passive
kennen|lernen ; weak ; h ; get to_know ; person ; acc=person ; in=town|dine state
auf|machen ; weak ; h ; open ; person ; acc=open|container|closed ; how=care
zu|machen ; weak ; h ; close ; person ; acc=open|container|closed ; how=care
an|ziehen ; zieht zog gezogen ; h ; put +on ; person ; acc=garment ;
aus|ziehen ; zieht zog gezogen ; h ; take +off ; person ; acc=garment ;
auf|setzen ; weak ; h ; put +on ; person ; acc=Hut|Mütze ;
ab|setzen ; weak ; h ; take +off ; person ; acc=Hut|Mütze ;
mit|nehmen ; nimmt nahm genommen ; h ; take +along ; person ; acc=container|pet|family|clothes ; noprogress
mit|bringen ; bringt brachte gebracht ; h ; bring +along ; person ; acc=food|drink|gift|family ; noprogress
weg|werfen ; wirft warf geworfen ; h ; throw +away ; person ; acc=food|letter|clothes ; passive
auf|räumen ; weak ; h ; tidy +up ; person ; acc=room ; passive
vor|bereiten ; weak ; h ; prepare ; person ; acc=event ; passive how=depth
auf|schreiben ; schreibt schrieb geschrieben ; h ; write +down ; person ; acc=abstract|Rezept ;
ein|schalten ; weak ; h ; turn +on ; person ; acc=device ; passive
aus|schalten ; weak ; h ; turn +off ; person ; acc=device ; passive
an|sehen ; sieht sah gesehen ; h ; look at ; person|pet ; acc=Bild|Foto|person|animal|building ;
auf|hängen ; weak ; h ; hang +up ; person ; acc=hang ; in=room
ein|packen ; weak ; h ; pack ; person ; acc=clothes|small|text ;
auf|wecken ; weak ; h ; wake +up ; person ; acc=young|family ;
auf|essen ; isst aß gegessen ; h ; eat +up ; person|pet ; acc=food ;
ab|schließen ; schließt schloss geschlossen ; h ; lock ; person ; acc=Tür|Tor|closed ; passive
an|probieren ; weak ; h ; try +on ; person ; acc=clothes ;
zurück|bringen ; bringt brachte gebracht ; h ; bring +back ; person ; acc=text|container|device ;
aus|leihen ; leiht lieh geliehen ; h ; borrow ; person ; acc=text|own|device ;
ab|schicken ; weak ; h ; send +off ; person ; acc=post ; passive
helfen ; hilft half geholfen ; h ; help ; person ; dat=person ; in=room|green
danken ; weak ; h ; thank ; person ; dat=person ; how=warmth
folgen ; weak ; s ; follow ; person|pet ; dat=person|animal ;
antworten ; weak ; h ; answer ; person ; dat=person ; how=speed
zu|hören ; weak ; h ; listen to ; person ; dat=person ;
zu|sehen ; sieht sah gesehen ; h ; watch ; person ; dat=person|animal ;
gratulieren ; weak ; h ; congratulate ; person ; dat=person ; how=warmth
vertrauen ; weak ; h ; trust ; person ; dat=person ; state noperfect
begegnen ; weak ; s ; meet ; person ; dat=person ; in=town|green state
widersprechen ; widerspricht widersprach widersprochen ; h ; contradict ; person ; dat=person ;
geben ; gibt gab gegeben ; h ; give ; person ; dat=person acc=small|text|container|food ;
schenken ; weak ; h ; give ; person ; dat=person acc=gift|clothes ;
schicken ; weak ; h ; send ; person ; dat=person acc=post|gift ;
zeigen ; weak ; h ; show ; person ; dat=person acc=gift|text|room|building|Weg ;
bringen ; bringt brachte gebracht ; h ; bring ; person ; dat=person acc=food|drink|small|clothes ;
erklären ; weak ; h ; explain ; person ; dat:to=person acc=abstract ;
erzählen ; weak ; h ; tell ; person ; dat=person acc=tale ;
leihen ; leiht lieh geliehen ; h ; lend ; person ; dat=person acc=text|own|device|clothes ;
vor|lesen ; liest las gelesen ; h ; read ; person ; dat:to=person acc=text ; how=voice
empfehlen ; empfiehlt empfahl empfohlen ; h ; recommend ; person ; dat:to=person acc=text|show|dine ; noprogress
an|bieten ; bietet bot geboten ; h ; offer ; person ; dat=person acc=food|drink ;
zurück|geben ; gibt gab gegeben ; h ; return ; person ; dat:to=person acc=text|small|own ;
vor|stellen ; weak ; h ; introduce ; person ; dat:to=person acc=kin ;
warten ; weak ; h ; wait ; person|pet ; auf+acc:for=person|public ; in=town|inside how=calm since
denken ; denkt dachte gedacht ; h ; think ; person ; an+acc:of=person|fun|Prüfung ; noprogress
sprechen ; spricht sprach gesprochen ; h ; talk ; person ; mit+dat:to=person ; in=town|inside how=voice
sprechen ; spricht sprach gesprochen ; h ; talk ; person ; über+acc:about=talk|event|text ; in=dine|inside
träumen ; weak ; h ; dream ; person ; von+dat:of=fun|own|wild ;
teil|nehmen ; nimmt nahm genommen ; h ; take part ; person ; an+dat:in=event ; noprogress
lachen ; weak ; h ; laugh ; person ; über+acc:about=tale|Film ; how=voice
spielen ; weak ; h ; play ; young|pet ; mit+dat:with=pet|toy|kin ; in=green|inside
arbeiten ; weak ; h ; work ; person ; an+dat:on=letter|solve|Plan ; in=inside|work since
sich_freuen ; weak ; h ; look forward to ; person ; auf+acc:=fun|show|Gast ; noprogress
sich_erinnern ; weak ; h ; remember ; person ; an+acc:=person|fun|tale ; state
sich_interessieren ; weak ; h ; be interested ; person ; für+acc:in=text|tale|building|animal ; state noperfect
sich_kümmern ; weak ; h ; take care ; person ; um+acc:of=young|elder|animal|patient ;
sich_ärgern ; weak ; h ; be annoyed ; person ; über+acc:about=person|abstract|Prüfung ; state
sich_verabschieden ; weak ; h ; say goodbye ; person ; von+dat:to=person ; in=arrive how=warmth
auf|passen ; weak ; h ; look after ; person ; auf+acc:=young|animal|container ;
ein|steigen ; steigt stieg gestiegen ; s ; get on ; person ; in+acc:=Bus|Zug|Straßenbahn|Flugzeug ; how=speed
aus|steigen ; steigt stieg gestiegen ; s ; get off ; person ; aus+dat:=Bus|Zug|Straßenbahn|Flugzeug ; how=speed
schlafen ; schläft schlief geschlafen ; h ; sleep ; person|animal ; ; in=inside|home|green how=quality
arbeiten ; weak ; h ; work ; person ; ; in=work|inside|Garten|Feld how=quality since
spielen ; weak ; h ; play ; young|pet ; ; in=inside|green
lachen ; weak ; h ; laugh ; person ; ; how=voice
weinen ; weak ; h ; cry ; person ; ; how=voice in=inside nocommand
singen ; singt sang gesungen ; h ; sing ; person|Vogel ; ; in=inside|green how=voice|quality
tanzen ; weak ; h ; dance ; person ; ; in=inside|dine how=quality
schwimmen ; schwimmt schwamm geschwommen ; s ; swim ; person|Ente|Hund ; ; how=speed|quality
frühstücken ; weak ; h ; have breakfast ; person ; ; in=dine|inside
auf|stehen ; steht stand gestanden ; s ; get up ; person ; ; how=speed
ein|schlafen ; schläft schlief geschlafen ; s ; fall asleep ; person|pet ; ; in=inside|seat noprogress nocommand
auf|wachen ; weak ; s ; wake up ; person|animal ; ; noprogress nocommand
sich_aus|ruhen ; weak ; h ; rest ; person|pet ; ; in=green|inside|seat
sich_beeilen ; weak ; h ; hurry ; person ; ;
lächeln ; weak ; h ; smile ; person ; ; how=warmth
weg|gehen ; geht ging gegangen ; s ; go away ; person ; ; how=speed noprogress
fern|sehen ; sieht sah gesehen ; h ; watch TV ; person ; ; in=inside
ein|kaufen ; weak ; h ; go shopping ; person ; ; in=Stadt|Supermarkt|Markt|Dorf noprogress
an|kommen ; kommt kam gekommen ; s ; arrive ; person|public ; ; in=arrive state
ab|fahren ; fährt fuhr gefahren ; s ; depart ; Bus|Zug|Straßenbahn|Schiff ; ; state
an|halten ; hält hielt gehalten ; h ; stop ; halt ; ; in=Straße|Platz|Brücke|Bahnhof|Dorf state
statt|finden ; findet fand gefunden ; h ; take place ; hosted ; ; in=hall|Park|Garten state
beginnen ; beginnt begann begonnen ; h ; begin ; event|show ; ; state
enden ; weak ; h ; end ; event|show ; ; state
gehen ; geht ging gegangen ; s ; go ; person ; dir=town|room|green|water|hall|Hause|person ; how=speed
kommen ; kommt kam gekommen ; s ; come ; person|pet ; dir=room|green|Hause|dine|Rathaus|Bahnhof ; noprogress
laufen ; läuft lief gelaufen ; s ; run ; person|pet|farm ; dir=green|water|across|Haus|Schule|through ; how=speed
fahren ; fährt fuhr gefahren ; s ; drive ; grown ; dir=town|water|map|live|Hause|family ; how=speed
fliegen ; fliegt flog geflogen ; s ; fly ; person ; dir=map ; noprogress
reisen ; weak ; s ; travel ; person ; dir=map ;
fahren ; fährt fuhr gefahren ; s ; go ; person ; dir=town|water|map|live|Hause ; with
wandern ; weak ; s ; hike ; person ; dir=Wald|Berg|Dorf|See|Fluss|Schloss ; how=speed
zurück|gehen ; geht ging gegangen ; s ; go back ; person ; dir=town|room|green|hall ; how=speed noprogress
zurück|kommen ; kommt kam gekommen ; s ; come back ; person ; dir=Hause|map|live ; noprogress
zurück|fahren ; fährt fuhr gefahren ; s ; drive back ; grown ; dir=town|map|live|Hause ; noprogress
wohnen ; weak ; h ; live ; person ; loc=home|live|map ; state noperfect since
bleiben ; bleibt blieb geblieben ; s ; stay ; person|pet ; loc=room|green|Hause|Hotel|Bibliothek|Dorf ; noprogress
liegen ; liegt lag gelegen ; h ; lie ; small|clothes|text|pet ; loc=surface|container ; state noperfect
stehen ; steht stand gestanden ; h ; stand ; upright ; loc=surface|closed ; state noperfect
stehen ; steht stand gestanden ; h ; stand ; Tisch|Stuhl|Bett|Sofa|Regal|Schrank|Sessel \
; loc=inside|hall|Garten ; state noperfect
hängen ; hängt hing gehangen ; h ; hang ; hang ; loc=Wand|Tür|closed ; state noperfect
sitzen ; sitzt saß gesessen ; h ; sit ; person|pet ; loc=seat|green|dine ; state noperfect
legen ; weak ; h ; put ; person ; acc=small|clothes|text dir=surface|container|closed ; how=care
stellen ; weak ; h ; put ; person ; acc=upright dir=surface|closed ; how=care
hängen ; weak ; h ; hang ; person ; acc=hang dir=Wand|Tür|closed ;
bringen ; bringt brachte gebracht ; h ; bring ; person ; acc=container|pet|young dir=room|town|Hause ;
"""

# Verbs that take a clause: the columns of _VERBS up to the English, then what the clause looks like:
# dass ("own" if it may be about oneself), ob (a question), zu (infinitive; "zu:ing" where English has a gerund).
_MATRIX = """
sagen ; weak ; h ; say ; dass own
glauben ; weak ; h ; believe ; dass own
denken ; denkt dachte gedacht ; h ; think ; dass own
hoffen ; weak ; h ; hope ; zu
wissen ; weiß wusste gewusst ; h ; know ; dass own ob
hören ; weak ; h ; hear ; dass
behaupten ; weak ; h ; claim ; dass own
vermuten ; weak ; h ; suspect ; dass
vergessen ; vergisst vergaß vergessen ; h ; forget ; dass own zu
fragen ; weak ; h ; ask ; ob
versuchen ; weak ; h ; try ; zu
versprechen ; verspricht versprach versprochen ; h ; promise ; zu
beschließen ; beschließt beschloss beschlossen ; h ; decide ; zu
beginnen ; beginnt begann begonnen ; h ; begin ; zu
an|fangen ; fängt fing gefangen ; h ; start ; zu:ing
auf|hören ; weak ; h ; stop ; zu:ing
vor|haben ; hat hatte gehabt ; h ; intend ; zu
"""

# Irregular English verbs: base, past, participle. All others are regular.
_ENGLISH_VERBS = """
be was been
have had had
do did done
read read read
write wrote written
buy bought bought
sell sold sold
eat ate eaten
drink drank drunk
find found found
lose lost lost
see saw seen
know knew known
build built built
wear wore worn
understand understood understood
forget forgot forgotten
pay paid paid
get got gotten
take took taken
steal stole stolen
cut cut cut
feed fed fed
catch caught caught
meet met met
teach taught taught
win won won
leave left left
hide hid hidden
sing sang sung
put put put
bring brought brought
throw threw thrown
hang hung hung
wake woke woken
send sent sent
give gave given
show showed shown
tell told told
lend lent lent
think thought thought
say said said
sleep slept slept
swim swam swum
fall fell fallen
go went gone
come came come
run ran run
drive drove driven
fly flew flown
begin began begun
lie lay lain
stand stood stood
sit sat sat
hear heard heard
cost cost cost
become became become
"""

ENGLISH_DOUBLING = frozenset("plan stop get put win run swim begin sit cut forget big sad hot wet".split())

# English words whose article does not follow from the first letter.
ENGLISH_A_BEFORE_VOWEL = frozenset(("university", "useful"))
ENGLISH_AN_BEFORE_CONSONANT = frozenset(("honest",))

# Forms for ich, du, er, wir, ihr, sie.
IRREGULAR_PRESENT: Dict[str, Words] = {
    "sein": ("bin", "bist", "ist", "sind", "seid", "sind"),
    "haben": ("habe", "hast", "hat", "haben", "habt", "haben"),
    "werden": ("werde", "wirst", "wird", "werden", "werdet", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen", "wisst", "wissen"),
}
SUBJUNCTIVE: Dict[str, Words] = {
    "sein": ("wäre", "wärst", "wäre", "wären", "wärt", "wären"),
    "haben": ("hätte", "hättest", "hätte", "hätten", "hättet", "hätten"),
    "werden": ("würde", "würdest", "würde", "würden", "würdet", "würden"),
}

# infinitive ; present ; past ; english present ; english past. "soll" is what others want, "sollte" is advice.
_MODALS = """
können ; kann kannst kann können könnt können ; konnte konntest konnte konnten konntet konnten ; can ; could
müssen ; muss musst muss müssen müsst müssen ; musste musstest musste mussten musstet mussten ; have to ; have to
wollen ; will willst will wollen wollt wollen ; wollte wolltest wollte wollten wolltet wollten ; want to ; want to
dürfen ; darf darfst darf dürfen dürft dürfen ; durfte durftest durfte durften durftet durften \
; be allowed to ; be allowed to
sollen ; soll sollst soll sollen sollt sollen ; sollte solltest sollte sollten solltet sollten \
; be supposed to ; should
möchten ; möchte möchtest möchte möchten möchtet möchten ; ; would like to ;
"""

CASES = ("nom", "acc", "dat", "gen")

# Endings by case for masculine, feminine, neuter, plural.
DEFINITE: Dict[str, Words] = {
    "nom": ("der", "die", "das", "die"),
    "acc": ("den", "die", "das", "die"),
    "dat": ("dem", "der", "dem", "den"),
    "gen": ("des", "der", "des", "der"),
}
RELATIVE: Dict[str, Words] = {
    "nom": ("der", "die", "das", "die"),
    "acc": ("den", "die", "das", "die"),
    "dat": ("dem", "der", "dem", "denen"),
    "gen": ("dessen", "deren", "dessen", "deren"),
}
# dies-, jed-, welch-, all-
DER_WORD_ENDINGS: Dict[str, Words] = {
    "nom": ("er", "e", "es", "e"),
    "acc": ("en", "e", "es", "e"),
    "dat": ("em", "er", "em", "en"),
    "gen": ("es", "er", "es", "er"),
}
# ein, kein, mein; the plural holds for kein and the possessives
EIN_WORD_ENDINGS: Dict[str, Words] = {
    "nom": ("", "e", "", "e"),
    "acc": ("en", "e", "", "e"),
    "dat": ("em", "er", "em", "en"),
    "gen": ("es", "er", "es", "er"),
}
ADJECTIVE_ENDINGS: Dict[str, Dict[str, Words]] = {
    "weak": {
        "nom": ("e", "e", "e", "en"),
        "acc": ("en", "e", "e", "en"),
        "dat": ("en", "en", "en", "en"),
        "gen": ("en", "en", "en", "en"),
    },
    "mixed": {
        "nom": ("er", "e", "es", "en"),
        "acc": ("en", "e", "es", "en"),
        "dat": ("en", "en", "en", "en"),
        "gen": ("en", "en", "en", "en"),
    },
    "strong": {
        "nom": ("er", "e", "es", "e"),
        "acc": ("en", "e", "es", "e"),
        "dat": ("em", "er", "em", "en"),
        "gen": ("en", "er", "en", "er"),
    },
}
CONTRACTIONS: Dict[Tuple[str, str], str] = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}
INSEPARABLE_PREFIXES = ("be", "emp", "ent", "er", "ge", "ver", "zer")

# Prepositions that may replace a place's own one: German, English. Dative for a place, accusative for a direction.
AROUND_BUILDING = (("vor", "in front of"), ("hinter", "behind"), ("neben", "next to"))
AROUND_FURNITURE = (("unter", "under"), ("neben", "next to"))


def _phrases(table: str) -> Tuple[Phrase, ...]:
    return tuple(Phrase(_words(german), _words(english)) for german, english in _rows(table, "="))


# When something happens, by the tenses it goes with.
TIMES_HABIT = _phrases("""
jeden Tag = every day
jeden Morgen = every morning
jeden Abend = every evening
jede Woche = every week
am Abend = in the evening
am Nachmittag = in the afternoon
am Wochenende = on the weekend
im Sommer = in summer
im Winter = in winter
""")
TIMES_PAST = _phrases("""
gestern = yesterday
gestern Abend = yesterday evening
vorgestern = the day before yesterday
heute Morgen = this morning
letzte Woche = last week
letzten Monat = last month
letztes Jahr = last year
letzten Sommer = last summer
""")
TIMES_FUTURE = _phrases("""
morgen = tomorrow
übermorgen = the day after tomorrow
morgen Abend = tomorrow evening
heute Abend = this evening
bald = soon
nächste Woche = next week
nächsten Monat = next month
nächstes Jahr = next year
nächsten Sommer = next summer
""")
TODAY = Phrase(("heute",), ("today",))
# Single days, which a time of day may follow: gestern um drei Uhr.
SINGLE_DAYS = frozenset((("gestern",), ("vorgestern",), ("morgen",), ("übermorgen",)))
# With these, a German present is an English progressive.
TIMES_NOW = _phrases("""
gerade = right now
jetzt = now
""")
FREQUENCIES = _phrases("""
oft = often
immer = always
manchmal = sometimes
selten = rarely
nie = never
""")
# With these, a German perfect is an English present perfect; without them it is a simple past.
PERFECT_ADVERBS = _phrases("""
schon = already
noch nie = never
gerade = just
""")
# The last two speak of what is not known yet.
SENTENCE_ADVERBS = _phrases("""
leider = unfortunately ,
natürlich = of course ,
zum Glück = fortunately ,
vielleicht = maybe
hoffentlich = hopefully ,
""")
DEGREES = _phrases("""
sehr = very
besonders = particularly
zu = too
ziemlich = quite
""")
ATTRIBUTIVE_DEGREES = DEGREES[:2]
_MANNERS = """
speed   schnell = quickly
speed   langsam = slowly
voice   leise = quietly
voice   laut = loudly
care    vorsichtig = carefully
care    behutsam = gently
depth   gründlich = thoroughly
depth   sorgfältig = carefully
warmth  herzlich = warmly
warmth  höflich = politely
calm    geduldig = patiently
calm    allein = alone
quality gut = well
quality schlecht = badly
"""
# Seasons with the weather that is typical of them.
SEASONS = (
    (Phrase(("im", "Sommer"), ("in", "summer")), ("regnen", "sehr heiß", "warm")),
    (Phrase(("im", "Winter"), ("in", "winter")), ("schneien", "kalt", "dunkel")),
)
# What people do together and like to do.
LEISURE = frozenset(
    "lesen essen trinken kochen backen bauen reparieren malen lösen übersetzen feiern planen vorbereiten aufräumen "
    "putzen genießen arbeiten spielen singen tanzen schwimmen frühstücken fernsehen einkaufen gehen fahren reisen "
    "wandern fliegen besuchen ausruhen".split()
)
# What people do to reach a further aim: Er geht in die Stadt, um ein Buch zu kaufen.
PURPOSEFUL = frozenset(
    "gehen fahren fliegen reisen laufen zurückgehen zurückfahren zurückkommen kommen aufstehen beeilen anrufen "
    "besuchen einladen einschalten ausleihen kaufen holen suchen warten benutzen mitnehmen aufwecken aufmachen".split()
)
DAYS = _phrases("""
Montag = Monday
Dienstag = Tuesday
Mittwoch = Wednesday
Donnerstag = Thursday
Freitag = Friday
Samstag = Saturday
Sonntag = Sunday
""")
# Vehicles one goes by: mit dem Bus, by bus.
TRANSPORT = ("Bus", "Zug", "Straßenbahn", "Taxi", "Auto", "Fahrrad", "Schiff")
MONTHS = _phrases("""
Januar = January
Februar = February
März = March
April = April
Mai = May
Juni = June
Juli = July
August = August
September = September
Oktober = October
November = November
Dezember = December
""")
ORDINALS = _phrases("""
ersten = first
zweiten = second
dritten = third
vierten = fourth
fünften = fifth
siebten = seventh
achten = eighth
zehnten = tenth
zwölften = twelfth
fünfzehnten = fifteenth
zwanzigsten = twentieth
""")
HOURS = _phrases("""
ein = one
zwei = two
drei = three
vier = four
fünf = five
sechs = six
sieben = seven
acht = eight
neun = nine
zehn = ten
elf = eleven
zwölf = twelve
""")
SMALL_NUMBERS = HOURS[1:]
LARGE_NUMBERS = _phrases("""
zwanzig = twenty
dreißig = thirty
vierzig = forty
fünfzig = fifty
sechzig = sixty
siebzig = seventy
achtzig = eighty
""")
SPANS = _phrases("""
Tagen = days
Wochen = weeks
Monaten = months
Jahren = years
""")
# Why one does something: kind, what is so, and the verbs that follow from it. Kinds: mood (sein), lack (kein haben,
# English not ... any), wish (haben) and dream (sein) for what is not so, rain and sky for the weather.
_REASONS = """
mood ; hungrig ; hungry ; essen kochen bestellen backen
mood ; durstig ; thirsty ; trinken bestellen
mood ; müde ; tired ; schlafen bleiben gehen ausruhen zurückgehen fernsehen
mood ; krank ; sick ; bleiben schlafen ausruhen
mood ; glücklich ; happy ; lachen singen tanzen lächeln feiern schenken einladen
mood ; traurig ; sad ; weinen bleiben weggehen anrufen besuchen
mood ; wütend ; angry ; weggehen verlassen widersprechen wegwerfen zumachen
mood ; zufrieden ; satisfied ; lächeln danken loben schenken genießen
mood ; nervös ; nervous ; weinen anrufen fragen trinken
lack ; keine Zeit ; any time ; beeilen weggehen fahren abschicken
lack ; kein Geld ; any money ; verkaufen arbeiten ausleihen bleiben
lack ; keine Hilfe ; any help ; fragen anrufen suchen
lack ; keine Arbeit ; any work ; bleiben reisen fernsehen wandern lesen
lack ; keinen Schlüssel ; a key ; warten anrufen gehen suchen
wish ; mehr Zeit ; more time ; lesen besuchen kochen schreiben reisen tanzen wandern
wish ; genug Geld ; enough money ; kaufen bauen reisen fliegen bestellen
wish ; ein Auto ; a car ; fahren abholen zurückfahren
wish ; einen Garten ; a garden ; pflanzen feiern ausruhen
dream ; reich ; rich ; kaufen bauen reisen schenken fliegen
dream ; jung ; young ; tanzen wandern reisen schwimmen
dream ; gesund ; healthy ; arbeiten gehen wandern tanzen schwimmen reisen
dream ; mutig ; brave ; widersprechen anrufen fragen retten einladen
dream ; nicht so müde ; not so tired ; lesen kochen gehen tanzen aufräumen arbeiten
rain ; regnen ; rain ; bleiben mitnehmen zumachen fernsehen fahren lesen
rain ; schneien ; snow ; bleiben anziehen fahren tragen
sky ; kalt ; cold ; anziehen zumachen bleiben trinken
sky ; dunkel ; dark ; einschalten gehen schlafen zurückgehen
sky ; sehr heiß ; very hot ; trinken schwimmen aufmachen ausziehen
sky ; warm ; warm ; gehen schwimmen wandern ausruhen
"""
# Es ist wichtig, pünktlich anzukommen.
JUDGEMENTS = _phrases("""
wichtig = important
schwierig = difficult
einfach = simple
gefährlich = dangerous
nützlich = useful
langweilig = boring
schön = nice
verboten = forbidden
""")


def _english_plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def _parse_noun(cells: List[str]) -> Noun:
    lemma, gender, plural, english, tags = cells[:5]
    options = _options(cells[5:])
    english, _, english_plural = english.replace("_", " ").partition("/")
    kind = tags.split(",")[0]
    extra = {lemma, "grown"} if kind == "person" and "young" not in tags else {lemma}
    return Noun(
        lemma=lemma,
        gender=gender,
        plural="" if plural == "-" else plural,
        english=english,
        english_plural=english_plural or _english_plural(english),
        tags=frozenset(tags.split(",")) | extra,
        kind=kind,
        genitive=options.get("gen", ""),
        weak="weak" in options,
        plural_only="pl" in options,
        place=tuple(options["at"].replace(":", ",").split(",")) if "at" in options else (),
    )


def _lower_first(word: str) -> str:
    return word[:1].lower() + word[1:]


def _compound(modifier: str, english: str, head: Noun) -> Noun:
    english = english.replace("_", " ")
    return head._replace(
        lemma=modifier + _lower_first(head.lemma),
        plural=head.plural and modifier + _lower_first(head.plural),
        genitive=head.genitive and modifier + _lower_first(head.genitive),
        english=english + " " + head.english,
        english_plural=english + " " + head.english_plural,
    )


def _parse_compounds(heads: Dict[str, Noun]) -> Iterator[Noun]:
    for head, modifiers in _rows(_COMPOUNDS, ":"):
        for modifier, _, english in (cell.partition("=") for cell in modifiers.split()):
            yield _compound(modifier, english, heads[head])


def _english_degrees(word: str, option: str) -> Words:
    if option == "more":
        return ("more " + word, "most " + word)
    if option:
        return tuple(option.split(","))
    if word in ENGLISH_DOUBLING:
        word += word[-1]
    elif word.endswith("e"):
        word = word[:-1]
    elif word.endswith("y") and word[-2] not in "aeiou":
        word = word[:-1] + "i"
    return (word + "er", word + "est")


def _parse_adjective(cells: List[str]) -> Adjective:
    lemma, english, tags = cells[:3]
    options = _options(cells[3:])
    superlative = lemma + ("est" if lemma.endswith(("d", "t", "s", "ß", "z", "sch")) else "st")
    degrees = options["cmp"].split(",") if "cmp" in options else [lemma + "er", superlative]
    english_degrees = _english_degrees(english, options.get("en", ""))
    return Adjective(
        lemma, options.get("stem", lemma), degrees[0], degrees[1], english, *english_degrees,
        graded="fixed" not in options, tags=frozenset(tags.split(",")),
    )


def _parse_pronoun(cells: List[str]) -> PronounEntry:
    return PronounEntry(*cells[1:9], person=int(cells[9]), plural=cells[10] == "pl", gender=cells[11])


def _weak_parts(infinitive: str) -> Words:
    """Principal parts of a weak verb: macht, machte, gemacht."""
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    needs_e = stem.endswith(("t", "d")) or (stem[-1] in "mn" and stem[-2] not in "aeiouäöülrhmn")
    link = "e" if needs_e else ""
    no_ge = infinitive.startswith(INSEPARABLE_PREFIXES) or infinitive.endswith("ieren")
    return (stem + link + "t", stem + link + "te", ("" if no_ge else "ge") + stem + link + "t")


def _parse_slot(cell: str) -> Slot:
    head, _, tags = cell.partition("=")
    head, _, english = head.partition(":")
    if "+" in head:
        german, _, case = head.partition("+")
        return Slot("prep", case, german, english, tuple(tags.split("|")))
    return Slot(head, {"loc": "dat", "dir": "acc"}.get(head, head), "", english, tuple(tags.split("|")))


def _parse_verb(cells: List[str]) -> Verb:
    german, parts, auxiliary, english, subjects, frame, flags = cells
    reflexive = german.startswith("sich_")
    prefix, _, infinitive = german.replace("sich_", "").rpartition("|")
    third, past, participle = _weak_parts(infinitive) if parts == "weak" else parts.split()
    base, *rest = english.split()
    particles = [word[1:] for word in rest if word.startswith("+")]
    options = _options(flags.split())
    return Verb(
        prefix, infinitive, third, past, participle,
        auxiliary="sein" if auxiliary == "s" else "haben",
        reflexive=reflexive,
        english=base,
        particle=particles[0] if particles else "",
        tail=_words(" ".join(word for word in rest if not word.startswith("+"))),
        subjects=tuple(subjects.split("|")),
        slots=tuple(_parse_slot(cell) for cell in frame.split()),
        flags=frozenset(options) - {"in", "how"},
        places=tuple(options["in"].split("|")) if "in" in options else (),
        manners=tuple(options["how"].split("|")) if "how" in options else (),
    )


def simple_verb(german: str, parts: str, english: str, auxiliary: str = "h") -> Verb:
    """Build a verb without a frame, for sentence patterns that bring their own."""
    return _parse_verb([german, parts, auxiliary, english, "person", "", "state"])


def _parse_matrix(cells: List[str]) -> Matrix:
    german, parts, auxiliary, english, clauses = cells
    return Matrix(simple_verb(german, parts, english, auxiliary), tuple(clauses.split()))


def _parse_modal(cells: List[str]) -> Modal:
    infinitive, present, past, english_present, english_past = cells
    present_head, *present_tail = english_present.split()
    past_head, *past_tail = english_past.split() or [""]
    return Modal(
        infinitive, tuple(present.split()), tuple(past.split()), present_head, past_head,
        tuple(present_tail), tuple(past_tail),
    )


SIMPLE_NOUNS: Tuple[Noun, ...] = tuple(_parse_noun(cells) for cells in _rows(_NOUNS))
COMPOUNDS: Tuple[Noun, ...] = tuple(_parse_compounds({noun.lemma: noun for noun in SIMPLE_NOUNS}))
NOUNS: Tuple[Noun, ...] = SIMPLE_NOUNS + COMPOUNDS
ADJECTIVES: Tuple[Adjective, ...] = tuple(_parse_adjective(cells) for cells in _rows(_ADJECTIVES))
PRONOUNS: Dict[str, PronounEntry] = {cells[0]: _parse_pronoun(cells) for cells in _rows(_PRONOUNS)}
TOWNS: Tuple[Town, ...] = tuple(
    Town(cells[0], cells[1], "country" in cells, "die" in cells) for cells in _rows(_TOWNS)
)
VERBS: Tuple[Verb, ...] = tuple(_parse_verb(cells) for cells in _rows(_VERBS, ";"))
MATRIX_VERBS: Tuple[Matrix, ...] = tuple(_parse_matrix(cells) for cells in _rows(_MATRIX, ";"))
REASONS: Tuple[Reason, ...] = tuple(
    Reason(kind, Phrase(_words(german), _words(english)), frozenset(verbs.split()))
    for kind, german, english, verbs in _rows(_REASONS, ";")
)
MODALS: Dict[str, Modal] = {modal.infinitive: modal for modal in map(_parse_modal, _rows(_MODALS, ";"))}
ENGLISH_VERBS: Dict[str, Words] = {cells[0]: tuple(cells) for cells in _rows(_ENGLISH_VERBS)}
MANNERS: Dict[str, Tuple[Phrase, ...]] = {}
for _group, _german, _, _english in _rows(_MANNERS):
    MANNERS[_group] = MANNERS.get(_group, ()) + (Phrase(_words(_german), _words(_english)),)
