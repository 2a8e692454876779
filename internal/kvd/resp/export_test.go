package resp

// SplitLine splits a line into words as the parser does with inline commands.
func SplitLine(line []byte) (words []string, ok bool) {
	args, ok := splitLine(line)
	for _, a := range args {
		words = append(words, string(a))
	}
	return words, ok
}
