package resp

// matchGlob reports whether s matches a pattern of Redis: * ? [a-z] [^a] and
// backslashes. Unlike a recursive matcher it takes time in proportion to the
// product of both lengths at most, whatever the pattern: of several stars only
// the last one is tried again.
func matchGlob(pattern, s string) bool {
	if s == "" { // of the patterns of stars Redis takes only the shortest
		return pattern == "" || pattern == "*"
	}
	star, again := -1, 0 // where the last star was, and what it has eaten up to
	p, i := 0, 0
	for i < len(s) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				star, again = p, i
				p++
				continue
			}
			if width, ok := matchOne(pattern[p:], s[i]); ok {
				p += width
				i++
				continue
			}
		}
		if star < 0 {
			return false
		}
		again++
		p, i = star+1, again
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchOne matches one byte with the beginning of a pattern, which is not a
// star, and returns how long that beginning is.
func matchOne(pattern string, c byte) (width int, ok bool) {
	switch pattern[0] {
	case '?':
		return 1, true
	case '[':
		return matchClass(pattern, c)
	case '\\':
		if len(pattern) > 1 {
			return 2, pattern[1] == c
		}
	}
	return 1, pattern[0] == c
}

// matchClass matches "[…]". As in Redis, a class that is not closed ends with
// the pattern.
func matchClass(pattern string, c byte) (width int, ok bool) {
	i := 1
	not := i < len(pattern) && pattern[i] == '^'
	if not {
		i++
	}
	found := false
	for ; i < len(pattern) && pattern[i] != ']'; i++ {
		switch {
		case pattern[i] == '\\' && i+1 < len(pattern):
			i++
			found = found || pattern[i] == c
		case i+2 < len(pattern) && pattern[i+1] == '-':
			low, high := min(pattern[i], pattern[i+2]), max(pattern[i], pattern[i+2])
			found = found || low <= c && c <= high
			i += 2
		default:
			found = found || pattern[i] == c
		}
	}
	return min(i+1, len(pattern)), found != not
}

// globPrefix is what every match of pattern begins with. exact is set when the
// pattern is nothing but that.
func globPrefix(pattern string) (prefix string, exact bool) {
	var b []byte
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '*', '?', '[':
			return string(b), false
		case '\\':
			if i+1 < len(pattern) {
				i++
			}
		}
		b = append(b, pattern[i])
	}
	return string(b), true
}

// prefixEnd is the least string that is greater than all that begin with prefix,
// "" if there is none.
func prefixEnd(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}
