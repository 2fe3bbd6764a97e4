module github.com/headroom-go/headroom/bench

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/headroom-go/headroom v0.0.0
)

require (
	github.com/google/pprof v0.0.0-20261105003125-4bf881d7fb0b // indirect
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/pkoukk/tiktoken-go-loader v0.0.2 // indirect
	golang.org/x/sys v0.50.0 // indirect
)

replace github.com/headroom-go/headroom => ../
