package pgwire

import (
	"github.com/xdg-go/stringprep"
	"golang.org/x/text/unicode/norm"
)

// saslMapped is SASLprep (RFC 4013) without normalization, its second step. PostgreSQL checks a
// password before it normalizes it, and so refuses some that stringprep.SASLprep accepts, such
// as "㋿": Unicode 3.2 does not have it, but has the two characters that NFKC makes of it. The
// order of the mappings is PostgreSQL's, too: a zero width space, which is in both tables,
// becomes a space.
var saslMapped = stringprep.Profile{
	Mappings: []stringprep.Mapping{
		spaces(stringprep.TableC1_2), stringprep.TableB1,
		{0x1806: nil}, // of table B.1, and missing in TableB1
	},
	Prohibits: []stringprep.Set{
		stringprep.TableA1, stringprep.TableC1_2, stringprep.TableC2_1, stringprep.TableC2_2, stringprep.TableC3,
		stringprep.TableC4, stringprep.TableC5, stringprep.TableC6, stringprep.TableC7, stringprep.TableC8, stringprep.TableC9,
	},
	CheckBiDi: true,
}

// spaces maps the characters of a set to a space.
func spaces(set stringprep.Set) stringprep.Mapping {
	m := stringprep.Mapping{}
	for _, of := range set {
		for r := of[0]; r <= of[1]; r++ {
			m[r] = []rune{' '}
		}
	}
	return m
}

// preparePassword applies SASLprep to a password before SCRAM hashes it. As in PostgreSQL, a
// password that SASLprep rejects, or that is not UTF-8, or that maps to nothing, is used
// unchanged.
func preparePassword(password string) string {
	mapped, err := saslMapped.Prepare(password)
	if err != nil || mapped == "" {
		return password // bytes that are not UTF-8 count as U+FFFD, which is prohibited
	}
	return norm.NFKC.String(mapped)
}
