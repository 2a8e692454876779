package resp

// matchGlob reports whether s matches a pattern of Redis: * ? [a-z] [^a] and backslashes.
// Unlike a recursive matcher it takes time proportional to the product of both lengths at most:
// of several stars only the last one is retried.
func matchGlob(pattern, s string) bool {
	if s == "" { // Redis accepts only the shortest pattern of stars here
		return pattern == "" || pattern == "*"
	}
	star, again := -1, 0 // position of the last star, and the end of what it has matched
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

// matchOne matches a byte with the first element of a pattern, which is not a star, and returns
// the length of that element.
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

// matchClass matches "[…]". As in Redis, an unclosed class ends with the pattern.
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

// globPrefix returns the prefix that every match of pattern has. exact is set if the pattern is
// only that.
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

// prefixEnd returns the smallest string that is greater than all strings with this prefix, ""
// if there is none.
func prefixEnd(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}
