package resp

import "testing"

// What lock libraries send is known, however it is laid out; what means something
// else is not.
func TestKnownScripts(t *testing.T) {
	for text, want := range map[string]program{
		"if redis.call(\"get\",KEYS[1]) == ARGV[1]\nthen\n    return redis.call(\"del\",KEYS[1])\nelse\n    return 0\nend":                         release,
		`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end`:                                        release,
		"\n\tif redis.call(\"GET\", KEYS[1]) == ARGV[1] then\n\t\treturn redis.call(\"PEXPIRE\", KEYS[1], ARGV[2])\n\telse\n\t\treturn 0\n\tend\n": touch,
		// redis-py 5 to 8.
		"\n        local token = redis.call('get', KEYS[1])\n        if not token or token ~= ARGV[1] then\n            return 0\n        end\n        redis.call('del', KEYS[1])\n        return 1\n    ": release,
		"\n        local token = redis.call('get', KEYS[1])\n        if not token or token ~= ARGV[1] then\n            return 0\n        end\n        local expiration = redis.call('pttl', KEYS[1])\n        if not expiration then\n            expiration = 0\n        end\n        if expiration < 0 then\n            return 0\n        end\n\n        local newttl = ARGV[2]\n        if ARGV[3] == \"0\" then\n            newttl = ARGV[2] + expiration\n        end\n        redis.call('pexpire', KEYS[1], newttl)\n        return 1\n    ": extend,
		"\n        local token = redis.call('get', KEYS[1])\n        if not token or token ~= ARGV[1] then\n            return 0\n        end\n        redis.call('pexpire', KEYS[1], ARGV[2])\n        return 1\n    ": touch,

		"return 1": 0,
		`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[2]) else return 0 end`:                 0,
		`if redis.call("get",KEYS[1]) ~= ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`:                 0,
		`if redis.call("get",KEYS[1]) == argv[1] then return redis.call("del",KEYS[1]) else return 0 end`:                 0,
		`if redis.call("g et",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`:                0,
		"-- release\nif redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end": 0,
		"": 0,
	} {
		if got := programs[canonical(text)]; got != want {
			t.Errorf("program %d, want %d: %s", got, want, text)
		}
	}
}
