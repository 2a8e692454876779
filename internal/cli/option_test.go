package cli

import "testing"

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{
		"1": 1, "512B": 512, "64kB": 64 << 10, "64k": 64 << 10, "16MB": 16 << 20, "16 MiB": 16 << 20, "1G": 1 << 30,
		"": 0, "MB": 0, "-1": 0, "0": 0, "1.5GB": 0, "1TB": 0, "1BB": 0, "9999999999GB": 0, "1 2MB": 0,
	} {
		got, err := ParseSize(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestShellWord(t *testing.T) {
	for word, want := range map[string]string{
		"out/all": "out/all", "my results": "'my results'", "it's": `'it'\''s'`, "": "''", "$HOME": "'$HOME'", "größe": "'größe'",
	} {
		if got := ShellWord(word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}
