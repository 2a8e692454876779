package mysql

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// quiet reports whether the values of a row cause no warnings by themselves, so that all
// warnings come from the columns and name their row: constants without a character set of their
// own, parameters, DEFAULT, and the time. The warnings of other expressions could not be
// assigned to one of several rows. row is as in myscan.InsertShape; anything that is not plain
// is not quiet.
func quiet(row string, mode myscan.Mode) bool {
	for i := 0; i < len(row); {
		switch ch := row[i]; {
		case ch == '\'' || ch == '"' && !mode.AnsiQuotes:
			n := stringLen(row[i:], mode)
			if n == 0 {
				return false
			}
			i += n
		case ch >= '0' && ch <= '9' || ch == '.' || isLetter(ch):
			n := i + 1
			for n < len(row) && (isLetter(row[n]) || row[n] >= '0' && row[n] <= '9' || row[n] == '.') {
				n++
			}
			if isLetter(ch) && (n-i > maxQuietWord || !quietWords[strings.ToLower(row[i:n])]) {
				return false
			}
			i = n
		case strings.IndexByte(" \t\r\n(),?+", ch) >= 0:
			i++
		case ch == '-' && !strings.HasPrefix(row[i:], "--"):
			i++
		default:
			return false
		}
	}
	return true
}

func isLetter(ch byte) bool { return ch|0x20 >= 'a' && ch|0x20 <= 'z' || ch == '_' }

// stringLen returns the length of the string that s begins with, or 0 if that is not clear.
func stringLen(s string, mode myscan.Mode) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == s[0]:
			return i + 1 // a doubled quote begins another string right behind
		case s[i] == '\\' && !mode.NoBackslashEscapes:
			i++
		case s[i] >= 0x80 && mode.Charset != myscan.CharsetUTF8:
			return 0
		}
	}
	return 0
}

// quietWords are the words that a quiet row may have.
var quietWords = map[string]bool{
	"null": true, "true": true, "false": true, "default": true,
	"now": true, "current_timestamp": true, "localtime": true, "localtimestamp": true,
	"curdate": true, "current_date": true, "curtime": true, "current_time": true,
	"utc_timestamp": true, "utc_date": true, "utc_time": true, "unix_timestamp": true,
}

// maxQuietWord is the length of the longest of them.
const maxQuietWord = len("current_timestamp")
