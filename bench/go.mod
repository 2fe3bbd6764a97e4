module github.com/headroom-go/headroom/bench

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/headroom-go/headroom v0.0.0
)

require (
	github.com/dlclark/regexp2/v2 v2.5.1 // indirect
	github.com/tiktoken-go/tokenizer v0.10.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/headroom-go/headroom => ../
