"""The commonest words of languages, by which a text in another language than the one asked for is suspected.

A word is listed for each language in which it is common: "de" for Spanish, French and Portuguese, among others. So a
word that is common in two languages does not speak for either of them against the other. English words that are often
quoted are listed for English alone.
"""

from __future__ import annotations

_WORDS = {
    "bg": "на и да не се от за че си като това по ще беше са тя той ми му го но защото много какво няма има съм към "
    "все как още само или бе в е с а до ако може ти ли след през аз които при ви ни който a i би й там то у я",
    "cs": "že je na se to jsem by jako jeho byl pro tak ale co jak už když který která které jsou bylo byla má jen "
    "nebo při ještě až jsme jste být něco protože také před své není tady li ni a v s z si do o i ve za k po od "
    "mi mě bude já u ty aby než ze ho jí ji jej jo no den ke my nad ne on sem ta ten ti tu",
    "da": "og det at er jeg en der ikke af på som til har med for den var han et de vi du mig hvad kan sig men efter "
    "også fra kunne skal blev ville hvor når meget være noget dig eller nu hun i så om ved vil man hvis her ud "
    "alle da a bare del dem dette din dit få får ja jer jo kun min mit nyt op os over par s se ser sin skulle "
    "tak én",
    "de": "und die der das ich nicht ist sie es ein zu wir mit auf den eine dass aber auch von sich wie wenn nur dem "
    "im noch bei aus oder haben war wird sind mich hat einen kann nach einer schon über für mir hier habe sein "
    "werden einem je ca in des als er an so du was am man um alle da de ja nie will worden",
    "el": "και το να του η για είναι την της με που θα δεν από ο τα στο τον τους στην μου οι αυτό τι σε αν ότι αλλά "
    "πολύ μια ένα των δε έχει ήταν εδώ μας στη τη σου στα στον ή κι όταν μην γιατί τις πως",
    "en": "the and of to in is that you it for was with this but his not be are have they what which from all there "
    "would been had has were when we if so my she her him your or who will an as can do them about out up just "
    "then than like its these by he their i at one could into some me on a more no man over am old care come "
    "men most see",
    "es": "que el la los las de y en un una es por con para no se lo su al como pero más del le si ya todo esta este "
    "está muy sin yo me sobre hay son cuando también porque hasta donde mi qué fue ser era tiene o ha eso tu te "
    "a sus todos bien cosa da dos han he ir les mas mis ni nos tal va",
    "et": "ja on ei et see ma ta oli mis kui ka oma aga ning nii või siis kes seda mida pole olen nagu veel kas olid "
    "ole selle meie välja oleks juba nad sa me mul teda üks kus",
    "fi": "ja on ei että hän se oli en mutta kun niin minä mitä kuin ole tai olen sen myös joka nyt olisi jos sitä "
    "ovat minun hänen vain mukaan sekä kanssa tämä siitä ollut ne sinä me hyvin vielä jo voi mikä olla sitten "
    "kaikki kyllä a alle et kai oma s siis vai",
    "fr": "de la le les et des est que en un une pas je il vous du dans ne pour qui ce sur elle au nous mais avec son "
    "se plus par l d qu on sa ses cette être ou sont était c n lui tout bien fait comme ont leur même si y a ai "
    "aux été ils à j s me tu te moi ça ca dit es eu ma mes non nos ta va ville",
    "hr": "je i se na da u to za su od ne ali kao što sam bi s o bio ja koji koja koje ili samo kako sve nije iz ga "
    "će ima jer još mi ti već do po biti bilo kad bila li ma isto one a sa te više kada ako tako smo može on "
    "bude dan e im ko me ni pa pre pri si ste ta tu uz vi",
    "hu": "a az és nem hogy is egy ez meg van de csak el már volt vagy mert én ha ki mit kell mint ezt azt olyan még "
    "úgy aki sem ő azonban most jól lesz fel ami le akkor minden nagyon így itt mi lehet majd s be ben e es "
    "este ma mai más na ne os se te",
    "id": "yang dan di itu dengan ini untuk tidak dari dalam akan pada juga saya ke karena ada oleh dia sudah mereka "
    "bisa atau kami adalah orang kita lebih telah seperti hanya anda aku apa sebagai bahwa ya kamu tapi tak "
    "jadi harus lagi a al bila bola kan para si",
    "it": "di che e il la è un non per una in sono mi con si da lo le ho ma come del della i gli più nel alla al ha "
    "se anche questo io hai cosa dei ci ti perché quando o delle sua suo molto ed era dal a l all fra sa ce su "
    "ad essere nella cui d ai alle ben de li lui mai me ne no po qui so sta te tu va vi voi",
    "lt": "ir kad į yra su tai iš ne o bet kaip buvo jis už ar aš mes jau ji dar apie tik man jo ką nuo po jų savo "
    "jos kas būti per tačiau nes mano labai prie taip kai dėl gali iki jei to jie arba a be bei du e k kada ko "
    "kur pas s sau ta tas ten tu v šis",
    "lv": "un ir ka es uz ar no nav tas viņš kā lai tā bija vai par bet to viņa man pie jau arī tikai mēs kas pēc kad "
    "jo viņu ko tu šo savu gan vēl šis ja tad līdz var būs ļoti ne tev kur nu a e pa tai te tik",
    "mt": "li ta u il ma f minn kien dan hu biex din kif hija dwar għal jew kull tal fil mill b hemm jekk wkoll huwa "
    "kienet mhux xi lil fuq bil meta għall hi fost",
    "nl": "de het een van en ik in dat is niet te zijn je op die voor met aan er hij maar als om we ook naar dan wat "
    "nog was bij heeft uit heb mijn zo deze dit kan door wel over zij ben wordt worden waar toch hebben haar ze "
    "hoe jullie werd noch of meer al geen tot u af alle ga had hier hun ja kun man men na nu per ten ter veel "
    "werden wie",
    "no": "og det i er jeg en på som til ikke av har med for den var han et de vi du meg hva kan seg men etter også "
    "fra kunne skal ble ville hvor når veldig være noe deg eller nå hun at om så å dette noen vil bare ut da "
    "blir hadde alle her a del dem der din ett få får ha hvis ja jo kun la like man min over sa se ser si sin "
    "skulle ta ved",
    "pl": "nie w się i na to że z jest do jak o co tak ale za po jego dla od jestem czy już tym może który która "
    "które przez było są tego być tylko był mnie ma jej ja jeszcze gdy żeby sobie bardzo bo a mi ze ten oraz "
    "będzie by ich mam jeśli też aby ci ile im jako je my nad no on s sam samo sie ta te teraz tu ty u we",
    "pt": "que o a de não e um uma os do da em no na com por para se é eu as mais mas ele ela isso como foi dos das "
    "você está ao muito bem seu sua também já quando nos minha meu à há lhe pelo são ser até só nem isto te me "
    "tem ou vai dar dia era esta este ir la porque sem sobre ter todo todos tu",
    "ro": "și de nu în a că la cu o pe să din un este mai care am ce pentru fi dar ai ca au se sunt fost lui doar mi "
    "el ea ei foarte dacă era acest acum atunci sau când după prin i al si va s e ne ar le cum ale despre iar "
    "mult are da dat eu fel in meu sa te tot una v voi",
    "ru": "и в не на что я с он это как а по но из у за то его к так все для от она мы было бы был о только же ты мне "
    "или уже если когда ещё еще вы до меня они чтобы очень ли там есть была ему быть нет их при будет кто да е "
    "много ни сам тут",
    "sk": "je na sa to že v som si by ako ale bol čo pre ktorý ktorá ktoré sme tak už sú alebo keď bolo len nie má aj "
    "ešte jeho bola ste byť pri od do zo ich iba teraz a z s o po za ak k vo aby bude až veľmi ho i im ja jej "
    "ma mi my nad než no so teda ten tu u",
    "sl": "je in v se na da so ne za ni to sem pa ki z po bi tudi kot bil če kaj ali od tako sta smo ko še več samo "
    "lahko ima pri ga kar bila bilo biti ste sme a s iz bo o že do med vse jih si ter saj ta dan del en jo k "
    "kako le me mi nad sam te tem ti tu",
    "sr": "је и се на да у то за су од не али као што сам би са о био ја који која које или само како све није из га "
    "ће има јер још ми ти већ до по а ако ви е их ли много може му ни но ні он она они при с си та я є і із",
    "sv": "och det att i är en som på jag för med av inte den har till ett de om var han du vi men så sig hur från "
    "vad kan när ska eller mig nu efter vid mycket där också hon skulle hade över finns min få nog bara här "
    "blir dem man då alla vill vara får ut a blev del dig din e er fel ha ja ni per s sa se sen ser sin ta va",
    "tr": "bir ve bu için çok ne da de ama o ben daha gibi var kadar olarak sonra her olan değil ile en mi bana sen "
    "şey olduğunu ki nasıl beni onu diye ya kim benim oldu hiç yok iyi sadece ise bile böyle iki a al ali anda "
    "az e el il para s son su",
    "uk": "і в не на що я у з та це до він як а але за по від його про так її ми вона було для був ти мене чи вже "
    "коли бо ще тільки може щоб є мені або де були там якщо дуже ні все то ви й які під вони із ж тут який a i "
    "би же и к о от при с сам той уже",
}
"""Thirty to ninety words of a language: the 25 languages of Parakeet v3, Norwegian, Serbian, Turkish and Indonesian."""

COMMON_WORDS = {language: frozenset(words.split()) for language, words in _WORDS.items()}
COMMON_WORDS["sr"] |= COMMON_WORDS["hr"]  # Serbian is written in both scripts
COMMON_WORDS |= {"bs": COMMON_WORDS["hr"], "ms": COMMON_WORDS["id"]}
