package clitest

import (
	"strings"
	"testing"
)

func TestParsePage(t *testing.T) {
	const fence = "```"
	p, err := ParsePage("a.md", "# A\n\n"+fence+"sh\necho one\n"+fence+"\n\n"+fence+"text\none\n"+fence+"\n\n"+
		"<!-- not run: needs the moon -->\n"+fence+"sh\nfly\n"+fence+"\n\n<!-- first: await true -->\n\n- item\n", // belongs to no block
	)
	if err == nil || !strings.Contains(err.Error(), "a.md:") {
		t.Errorf("a comment that belongs to no block: %v", err)
	}
	p, err = ParsePage("a.md", "# A\n\n"+fence+"sh\necho one\n"+fence+"\n\n"+fence+"text\none\n"+fence+"\n\n"+fence+"text\nother\n"+fence+"\n"+
		"<!-- not run: needs the moon -->\n"+fence+"sh\nfly\n"+fence+"\n\n<!-- first: await true -->\n<!-- first: two -->\n  "+fence+"sh\n  echo two\n  "+fence+"\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Blocks) != 3 || !p.Runs() {
		t.Fatalf("%+v", p)
	}
	a, b, c := p.Blocks[0], p.Blocks[1], p.Blocks[2]
	if a.Line != 3 || a.Text != "echo one\n" || strings.Join(a.Output, "|") != "one" {
		t.Errorf("%+v", a)
	}
	if b.NotRun != "needs the moon" || b.Text != "fly\n" || b.Output != nil {
		t.Errorf("%+v", b)
	}
	if strings.Join(c.First, "|") != "await true|two" || c.Text != "echo two\n" {
		t.Errorf("%+v", c)
	}
	script := p.script()
	if strings.Contains(script, "fly") || !strings.Contains(script, "await true\ntwo\necho; echo '@@ 21'\necho two\n") {
		t.Errorf("script:\n%s", script)
	}
	for name, text := range map[string]string{
		"open":    fence + "sh\necho\n",
		"comment": "<!-- not run: x -->\n" + fence + "sql\nSELECT 1\n" + fence + "\n",
		"last":    "<!-- first: x -->\n",
	} {
		if _, err := ParsePage("b.md", text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestLacks(t *testing.T) {
	printed := []string{"a  b", "noise", "took 5 ms", "end"}
	same := func(s string) string { return s }
	for want, missing := range map[string]string{
		"a b|took … ms|end": "", "end|a b": "a b", "took … s": "took … s", "…|end": "", "a": "a",
	} {
		if got := lacks(printed, strings.Split(want, "|"), same); got != missing {
			t.Errorf("%s: lacks %q, want %q", want, got, missing)
		}
	}
	if got := pageSections("x\n@@ 3\na\n\n@@ end\n"); len(got["3"]) != 2 || got["end"] == nil {
		t.Errorf("%q", got)
	}
}
