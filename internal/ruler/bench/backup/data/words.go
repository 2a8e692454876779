package backupdata

import (
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
)

// The most common words of English, which are about half of any text; the rest of the
// vocabulary is made of syllables.
var common = strings.Fields(`the of and to in a is that for it was on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way find use may
water long little very after words called just where most know get through back much before go good new write our used me man too any
day same right look think also around another came come work three word must because does part even place well such here take why
things help put years different away again off went old number great tell men say small every found still between name should home big
give air line set own under read last never us left end along while might next sound below saw something thought both few those always`)

// vocabulary returns words by decreasing frequency, and the cumulative frequency of the first i
// words, by Zipf's law.
var vocabulary = sync.OnceValues(func() (words []string, upTo []float64) {
	const size = 20000
	onset := strings.Fields("b br c ch cl cr d dr f fl fr g gr h j k l m n p pl pr qu r s sc sh sl sp st str t th tr v w")
	nucleus := strings.Fields("a e i o u ai ea ee io ou")
	coda := append(strings.Fields("n r s t l m d ck ng nt rd st"), "", "", "", "")
	ending := append(strings.Fields("s ed ing er ly tion ment ness able al"), "", "", "", "", "", "")
	rng := rand.New(rand.NewPCG(1, 2))
	seen := make(map[string]bool)
	words = append(words, common...)
	for _, w := range words {
		seen[w] = true
	}
	for len(words) < size {
		var b strings.Builder
		for range 1 + rng.IntN(3) {
			b.WriteString(onset[rng.IntN(len(onset))] + nucleus[rng.IntN(len(nucleus))] + coda[rng.IntN(len(coda))])
		}
		b.WriteString(ending[rng.IntN(len(ending))])
		if w := b.String(); !seen[w] && len(w) > 2 {
			seen[w] = true
			words = append(words, w)
		}
	}
	upTo = make([]float64, len(words))
	sum := 0.0
	for i := range words {
		sum += 1 / math.Pow(float64(i)+2.7, 1.05)
		upTo[i] = sum
	}
	return words, upTo
})

// word returns a random word.
func word(rng *rand.Rand) string {
	words, upTo := vocabulary()
	u := rng.Float64() * upTo[len(upTo)-1]
	return words[min(sort.SearchFloat64s(upTo, u), len(words)-1)]
}

var (
	firstNames = strings.Fields(`Anna Ben Carla David Elena Farid Grace Hugo Ines Jonas Kira Leon Maria Nils Olga Pedro Quentin Rosa Sven
Tara Uwe Vera Walid Xenia Yusuf Zoe Aiko Björn Chloé Dağhan Émile Fatima Gülay Håkon Łukasz Małgorzata Niño Østen Søren Zoë 美咲 伟`)
	lastNames = strings.Fields(`Adler Becker Costa Dubois Eriksson Fischer Garcia Hoffmann Ivanova Jensen Kowalski Lindqvist Moreau
Novak Okafor Petrov Quist Rossi Schneider Tanaka Ueda Virtanen Weber Xu Yilmaz Zimmermann Müller Peña Çelik Øvergård`)
	cities    = strings.Fields(`Aachen Bergen Córdoba Dublin Espoo Firenze Gdańsk Haarlem Izmir Jena Kyoto Lyon Malmö Nantes Oslo Porto Rīga Split Turku Ulm`)
	states    = strings.Fields("new paid packed shipped delivered delivered delivered delivered returned cancelled")
	actions   = strings.Fields("view view view view search search add_to_cart checkout login logout error")
	agents    = []string{"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.4 Safari/605.1.15", "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36", "shop-app/4.11.2 (Android 14; Pixel 7)", "shop-app/4.12.0 (iOS 17.5; iPhone14,5)"}
	mimeTypes = strings.Fields("image/jpeg image/png application/pdf application/zip text/csv")
)
